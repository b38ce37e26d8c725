// Builds a case when it is opened: building a thousand at once would be slow.
const detailsOf = (data) => {

  const make = (tag, attributes, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };

  const table = (heads, rows, style) => {
    const cells = (row, tag) =>
      heads.map(([, numeric], at) => {
        const value = row[at];
        const marked = Array.isArray(value);
        const kind = [numeric ? "num" : "", marked ? "off" : ""].join(" ").trim();
        return make(tag, kind ? { class: kind } : {}, marked ? value[0] : value);
      });
    const head = make("tr", {}, ...cells(heads.map(([name]) => name), "th"));
    const body = rows.map((row) => make("tr", row.some(Array.isArray) ? { class: "differs" } : {}, ...cells(row, "td")));
    return make("div", { class: "scroll" }, make("table", { class: style }, make("thead", {}, head), make("tbody", {}, ...body)));
  };

  const repro = (command) =>
    make("div", { class: "repro" }, make("code", {}, command), make("button", { type: "button", class: "copy", "data-copy": command }, "copy"));

  const folded = (name, title, children) => make("details", { class: name }, make("summary", {}, title), ...children);

  const failure = (it) => {
    const where = make("p", { class: "where" }, it.check ? make("b", {}, it.check) : null);
    if (it.place) where.append(" at ", make("code", {}, it.place));
    where.append(it.more || "");
    const parts = [where];
    if (it.listing) parts.push(make("pre", { class: "listing" }, it.listing));
    if (it.message) parts.push(make("pre", { class: "message" }, it.message));
    if (it.also) parts.push(folded("also", `also ${it.num_also} more`, [make("ul", {}, ...it.also.map((line) => make("li", {}, make("pre", {}, line))))]));
    return parts;
  };

  // The sections of a case in display order. A section exists only if the results file holds its data.
  const body = (one) => {
    const parts = [];
    if (one.failure) parts.push(...failure(one.failure));
    if (one.no_failure) parts.push(make("p", { class: "where" }, one.no_failure));
    if (one.reason) parts.push(make("p", { class: "reason" }, one.reason));
    if (one.plan) parts.push(make("p", { class: "reason" }, one.plan));
    if (one.sums) parts.push(make("p", { class: "reason" }, one.sums));
    if (one.evidence)
      parts.push(make("dl", { class: "facts" }, ...one.evidence.map((value, at) => make("div", {}, make("dt", {}, data.facts[at]), make("dd", {}, value)))));
    for (const part of one.tables || []) {
      parts.push(make("h4", {}, part.title));
      parts.push(table(part.heads.map((at) => data.heads[at]), part.rows, `small ${part.kind}`));
      if (part.note) parts.push(make("p", { class: "note" }, part.note));
    }
    for (const [name, peak, rest] of one.memory || []) parts.push(make("p", { class: "memory" }, `${name} `, make("b", {}, peak), rest));
    if (one.records)
      parts.push(folded("records", one.records_title, one.records.map(([name, value]) => make("p", {}, make("b", {}, name), " ", make("code", {}, value)))));
    if (one.timeline) parts.push(make("p", { class: "note" }, one.timeline[0] ? make("a", { href: `#${one.timeline[0]}` }, "its timeline") : "its timeline", ` ${one.timeline[1]}`));
    if (one.repro) parts.push(repro(one.repro));
    return parts;
  };

  const fill = (element) => {
    const room = element.querySelector(":scope > .body");
    if (room && !room.firstChild) room.append(...body(data.cases[Number(element.id.slice(5))]));
  };

  document.addEventListener("toggle", (event) => {
    if (event.target.classList && event.target.classList.contains("case") && event.target.open) fill(event.target);
  }, true);
  return { data, fill };
};
