// Draws the timelines: one row per stream, one box per launch, a curve between the boxes of a collective on its ranks.
(() => {
  const TICKS = 10; // per microsecond, the unit of the data
  const FIELDS = 6; // of a box: begin, duration, name, info, flags, wait
  const GUTTER = 148;
  const ROW = 18;
  const INNER = 14; // rows of steps and modules
  const HEAD = 20;
  const MAX_JOINS = 800;

  const escaped = (text) => text.replace(/[&<>"']/g, (one) => `&#${one.charCodeAt(0)};`);
  const rounded = (value) => Math.round(value * 100) / 100;

  const time = (ticks) => {
    const us = ticks / TICKS;
    if (Math.abs(us) >= 1e6) return `${+(us / 1e6).toPrecision(6)} s`;
    if (Math.abs(us) >= 1e3) return `${+(us / 1e3).toPrecision(6)} ms`;
    return `${+us.toPrecision(4)} \u00b5s`;
  };

  const niceStep = (span, atMost) => {
    const raw = span / atMost;
    const power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw);
  };

  // A begin is stored as the distance from the previous one. Waits are stored separately, because few boxes have one.
  const unpacked = ({ boxes, waits }) => {
    const found = [];
    let begin = 0;
    for (let i = 0; i < boxes.length; i += 5) {
      begin += boxes[i];
      found.push(begin, ...boxes.slice(i + 1, i + 5), -1);
    }
    for (let i = 0; i < waits.length; i += 2) found[waits[i] * FIELDS + 5] = waits[i + 1];
    return found;
  };

  class Timeline {
    constructor(holder) {
      this.data = JSON.parse(holder.querySelector("script").textContent);
      for (const lane of this.data.lanes) lane.boxes = unpacked(lane);
      this.axis = holder.querySelector(".axis");
      this.svg = holder.querySelector(".lanes");
      this.readout = holder.querySelector(".readout");
      this.hint = this.readout.textContent;
      this.holder = holder;
      this.full = [0, Math.max(this.data.end * 1.002, 1)];
      this.view = [...this.full];
      this.place();
      this.listen();
      this.draw();
    }

    // The position of each lane, top to bottom.
    place() {
      let y = 2;
      let rank = null;
      this.heads = [];
      this.lanes = this.data.lanes.map((lane) => {
        if (lane.rank !== rank) {
          rank = lane.rank;
          if (this.heads.length) y += 6;
          this.heads.push({ rank, y });
          y += HEAD;
        }
        const row = lane.depth > 1 ? INNER : ROW;
        const placed = { ...lane, y, row, height: row * lane.depth + 4 };
        y += placed.height;
        return placed;
      });
      this.height = y + 4;
      this.joinOf = new Map();
      this.data.joins.forEach((join, number) => {
        for (let i = 0; i < join.length; i += 2) this.joinOf.set(`${join[i]}:${join[i + 1]}`, number);
      });
    }

    get width() {
      return Math.max(this.svg.parentElement.clientWidth, 320);
    }
    x(ticks) {
      const [from, to] = this.view;
      return GUTTER + ((ticks - from) / (to - from)) * (this.width - GUTTER - 8);
    }
    ticksAt(x) {
      const [from, to] = this.view;
      return from + ((x - GUTTER) / (this.width - GUTTER - 8)) * (to - from);
    }

    draw() {
      const width = this.width;
      for (const [svg, height] of [[this.axis, 22], [this.svg, this.height]]) {
        svg.setAttribute("width", width);
        svg.setAttribute("height", height);
        svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      }
      this.drawAxis(width);
      const parts = [];
      for (const head of this.heads)
        parts.push(`<text class="rank" x="0" y="${head.y + 14}">rank ${head.rank}</text><path class="rule" d="M0 ${head.y + 0.5}H${width}"/>`);
      const boxes = [];
      this.lanes.forEach((lane, number) => {
        const name = lane.name.length > 24 ? `${lane.name.slice(0, 23)}\u2026` : lane.name;
        parts.push(`<rect class="lane" x="${GUTTER}" y="${lane.y}" width="${width - GUTTER}" height="${lane.height - 2}"/>`);
        parts.push(`<text class="name" x="${GUTTER - 8}" y="${lane.y + 12}" text-anchor="end">${escaped(name)}</text>`);
        this.drawBoxes(lane, number, boxes);
      });
      // A nested drawing clips boxes that begin left of the rows.
      const inner = `x="${GUTTER}" width="${width - GUTTER}" height="${this.height}" viewBox="${GUTTER} 0 ${width - GUTTER} ${this.height}"`;
      const joins = this.drawJoins();
      parts.push(`<svg ${inner}${joins.length > 120 ? ' class="many"' : ""}>`, ...boxes, ...joins, "</svg>");
      this.svg.innerHTML = parts.join("");
    }

    drawAxis(width) {
      const [from, to] = this.view;
      const step = niceStep(to - from, Math.max(2, (width - GUTTER) / 110));
      const parts = [];
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
        const x = rounded(this.x(at));
        const anchor = x > width - 50 ? "end" : x < GUTTER + 30 ? "start" : "middle";
        parts.push(`<path class="rule" d="M${x} 16V22"/><text class="name" x="${x}" y="12" text-anchor="${anchor}">${time(at)}</text>`);
      }
      this.axis.innerHTML = parts.join("");
    }

    drawBoxes(lane, number, parts) {
      const [from, to] = this.view;
      const { boxes } = lane;
      const reached = new Array(lane.depth).fill(-1); // pixels drawn so far, per row: a box narrower than a pixel joins the previous one
      for (let i = 0, box = 0; i < boxes.length; i += FIELDS, ++box) {
        const begin = boxes[i];
        const end = begin + boxes[i + 1];
        if (begin > to) break;
        if (end < from) continue;
        const flags = boxes[i + 4];
        const depth = flags >> 5;
        const left = this.x(begin);
        const right = Math.max(this.x(end), left + 0.8);
        if (right - reached[depth] < 0.5) continue;
        reached[depth] = right;
        const x = rounded(Math.max(left, GUTTER - 2));
        const wide = rounded(Math.min(right, this.width + 2) - x);
        const y = lane.y + 1 + depth * lane.row;
        const high = lane.row - 1;
        const key = `${number}:${box}`;
        const wait = boxes[i + 5];
        const kind = `k${flags & 15}${flags & 16 ? " unfinished" : ""}`;
        parts.push(`<rect class="box ${kind}${wait > 0 ? " flight" : ""}" data-b="${key}" x="${x}" y="${y}" width="${wide}" height="${high}"/>`);
        if (wait > 0) {
          const resumed = Math.max(this.x(begin + wait), x);
          if (right - resumed > 0.4)
            parts.push(`<rect class="wait ${kind}" x="${rounded(resumed)}" y="${y}" width="${rounded(Math.min(right, this.width + 2) - resumed)}" height="${high}"/>`);
        }
        if (wide > 30) {
          const text = this.data.texts[boxes[i + 2]];
          const room = Math.floor((wide - 6) / 6.1);
          const shown = text.length > room ? `${text.slice(0, Math.max(room - 1, 1))}\u2026` : text;
          parts.push(`<text class="label l${flags & 15}" x="${x + 3}" y="${y + high - 4}">${escaped(shown)}</text>`);
        }
      }
    }

    // A curve between neighbouring ranks, from box to box.
    drawJoins() {
      const [from, to] = this.view;
      const parts = [];
      for (let number = 0; number < this.data.joins.length && parts.length < MAX_JOINS; ++number) {
        const join = this.data.joins[number];
        const ends = [];
        for (let i = 0; i < join.length; i += 2) {
          const lane = this.lanes[join[i]];
          const at = join[i + 1] * FIELDS;
          ends.push([lane.boxes[at], lane.boxes[at + 1], lane.y + 1, lane.row - 1]);
        }
        if (ends.every(([begin, length]) => begin + length < from) || ends.every(([begin]) => begin > to)) continue;
        let path = "";
        for (let i = 1; i < ends.length; ++i) {
          const [a, , ay, high] = ends[i - 1];
          const [b, , by] = ends[i];
          const x0 = rounded(this.x(a));
          const x1 = rounded(this.x(b));
          const y0 = ay + high;
          const bend = (by - y0) / 2;
          path += `M${x0} ${y0}C${x0} ${y0 + bend} ${x1} ${by - bend} ${x1} ${by}`;
        }
        parts.push(`<path class="join" data-j="${number}" d="${path}"/>`);
      }
      return parts;
    }

    zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
      const length = Math.min(Math.max((this.view[1] - this.view[0]) * factor, 20), this.full[1]);
      const share = (at - this.view[0]) / (this.view[1] - this.view[0]);
      this.go(at - share * length, length);
    }
    go(from, length) {
      const start = Math.min(Math.max(from, 0), this.full[1] - length);
      this.view = [start, start + length];
      clearTimeout(this.frame);
      this.frame = setTimeout(() => this.draw(), 5); // once for all events of a frame
    }
    move(share) {
      const length = this.view[1] - this.view[0];
      this.go(this.view[0] + share * length, length);
    }

    tell(key) {
      for (const lit of this.svg.querySelectorAll(".lit")) lit.classList.remove("lit");
      if (!key) {
        this.readout.textContent = this.hint;
        return;
      }
      const [number, box] = key.split(":").map(Number);
      const lane = this.lanes[number];
      const [begin, length, name, info, flags, wait] = lane.boxes.slice(box * FIELDS, box * FIELDS + FIELDS);
      let said = `rank ${lane.rank}, ${lane.name}: ${this.data.texts[name]}, ${time(length)} from ${time(begin)}`;
      if (this.data.texts[info]) said += `; ${this.data.texts[info]}`;
      if (wait > 0) said += `; waited for after ${time(wait)}`;
      if (flags & 16) said += "; never ended";
      this.readout.textContent = said;
      const join = this.joinOf.get(key);
      if (join === undefined) return;
      const path = this.svg.querySelector(`path[data-j="${join}"]`);
      if (path) path.classList.add("lit");
      const members = this.data.joins[join];
      for (let i = 0; i < members.length; i += 2) {
        const other = this.svg.querySelector(`[data-b="${members[i]}:${members[i + 1]}"]`);
        if (other) other.classList.add("lit");
      }
    }

    listen() {
      const place = (event) => this.ticksAt(event.clientX - this.svg.getBoundingClientRect().left);
      let dragged = null;
      this.svg.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
        event.preventDefault();
        this.zoom(Math.exp((event.deltaY || event.deltaX) * 0.002), place(event));
      }, { passive: false });
      this.svg.addEventListener("dblclick", (event) => this.zoom(0.4, place(event)));
      this.svg.addEventListener("pointerdown", (event) => {
        if (event.button === 0) dragged = { x: event.clientX, from: this.view[0] };
      });
      addEventListener("pointerup", () => (dragged = null));
      this.svg.addEventListener("pointermove", (event) => {
        if (dragged) {
          const length = this.view[1] - this.view[0];
          this.go(dragged.from - ((event.clientX - dragged.x) / (this.width - GUTTER - 8)) * length, length);
          return;
        }
        this.tell(event.target.dataset ? event.target.dataset.b : null);
      });
      this.svg.addEventListener("pointerleave", () => this.tell(null));
      const acts = { in: () => this.zoom(0.5), out: () => this.zoom(2), left: () => this.move(-0.3), right: () => this.move(0.3), all: () => this.go(0, this.full[1]) };
      for (const button of this.holder.querySelectorAll("[data-zoom]")) button.addEventListener("click", acts[button.dataset.zoom]);
      const keys = { "+": "in", "=": "in", "-": "out", 0: "all", ArrowLeft: "left", ArrowRight: "right" };
      this.svg.addEventListener("keydown", (event) => {
        if (!(event.key in keys) || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        acts[keys[event.key]]();
      });
      new ResizeObserver(() => this.width !== this.lastWidth && ((this.lastWidth = this.width), this.draw())).observe(this.svg.parentElement);
      this.lastWidth = this.width;
    }
  }

  // Drawn when first opened, because their sizes are unknown before.
  for (const holder of document.querySelectorAll("details.timeline")) {
    const start = () => {
      if (holder.open && !holder.timeline && holder.querySelector("script")) holder.timeline = new Timeline(holder);
    };
    holder.addEventListener("toggle", start);
    start();
  }
})();
