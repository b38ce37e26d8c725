// Filters, links and buttons.
const startPage = (details) => {
  const query = document.getElementById("query");
  const shown = document.getElementById("shown");
  const nothing = document.getElementById("nothing");
  const groups = [...document.querySelectorAll("details.group")].map((element) => ({
    element,
    count: element.querySelector(".matching"),
    cases: [...element.querySelectorAll(":scope > details.case")].map((element) => {
      const one = details.data.cases[Number(element.id.slice(5))];
      return { element, words: one.words, text: one.text || "", status: element.dataset.status, chosen: one.chosen };
    }),
  }));
  const toggles = [...document.querySelectorAll(".filter .chip")];
  const selects = [...document.querySelectorAll(".filter select")]; // in the order of `chosen`: document, launch, device
  const wanted = new Set();

  // A word with = or : must match whole, so that test:1 does not match test:16. Other words match parts of names and texts.
  const holds = (one, tokens) =>
    tokens.every((token) =>
      /^[\w.-]+[=:]./.test(token) ? one.words.includes(` ${token} `) || one.text.includes(token) : one.words.includes(token) || one.text.includes(token));

  const apply = () => {
    const tokens = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const choices = selects.map((select) => select.value);
    const active = tokens.length > 0 || wanted.size > 0 || choices.some((choice) => choice !== "");
    let visible = 0;
    let total = 0;
    for (const group of groups) {
      let any = 0;
      for (const one of group.cases) {
        const match =
          (wanted.size === 0 || wanted.has(one.status)) &&
          choices.every((choice, at) => choice === "" || String(one.chosen[at]) === choice) &&
          holds(one, tokens);
        one.element.hidden = !match;
        any += match;
      }
      group.element.hidden = any === 0;
      group.count.textContent = active && any < group.cases.length ? `${any} of ${group.cases.length} match` : "";
      visible += any;
      total += group.cases.length;
    }
    // A few groups are shown open; a hundred open groups would be unreadable.
    if (active) {
      let room = 60;
      for (const group of groups) {
        if (group.element.hidden) continue;
        room -= group.cases.filter((one) => !one.element.hidden).length;
        if (room >= 0) group.element.open = true;
      }
    }
    shown.textContent = active ? `${visible} of ${total} cases` : `${total} cases`;
    nothing.hidden = visible > 0;
    for (const toggle of toggles) toggle.setAttribute("aria-pressed", String(wanted.has(toggle.dataset.status)));
    for (const select of selects) select.classList.toggle("on", select.value !== "");
  };

  const go = (text, status) => {
    query.value = text;
    wanted.clear();
    if (status) wanted.add(status);
    for (const select of selects) select.value = "";
    for (const group of groups) group.element.open = false;
    apply();
    document.getElementById("cases").scrollIntoView();
  };

  const openTarget = () => {
    const target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.matches("details.timeline")) target.open = true;
    if (!target.matches("details.case")) return;
    if (target.hidden || target.parentElement.hidden) go("", null);
    target.parentElement.open = true;
    details.fill(target);
    target.open = true;
    target.scrollIntoView({ block: "start" });
  };

  document.addEventListener("click", (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const done = () => {
        copy.textContent = "copied";
        setTimeout(() => (copy.textContent = "copy"), 1200);
      };
      const select = () => getSelection().selectAllChildren(copy.previousElementSibling);
      if (navigator.clipboard) navigator.clipboard.writeText(copy.dataset.copy).then(done, select);
      else select();
      return;
    }
    if (!query) return;
    const chip = event.target.closest(".chip");
    if (chip && chip.classList.contains("toggle")) {
      if (!wanted.delete(chip.dataset.status)) wanted.add(chip.dataset.status);
      apply();
    } else if (chip) {
      go("", chip.dataset.status);
    } else {
      const pick = event.target.closest("[data-filter]");
      if (pick) {
        event.preventDefault();
        go(pick.dataset.filter, null);
      }
    }
  });
  if (query) {
    let waiting;
    query.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(apply, 60); // a word is typed faster than a thousand rows are laid out
    });
    for (const select of selects) select.addEventListener("change", apply);
    document.getElementById("clear").addEventListener("click", () => go("", null));
    document.addEventListener("keydown", (event) => {
      const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
      if (event.key === "/" && !typing) {
        event.preventDefault();
        query.focus();
      }
    });
    apply();
  }
  // The bars at the top stay in view. The target of a link must scroll to a position below them.
  const bars = [...document.querySelectorAll("nav, .filter")];
  const measure = () => {
    const sticky = bars.filter((bar) => getComputedStyle(bar).position === "sticky").map((bar) => bar.offsetHeight);
    document.documentElement.style.setProperty("--nav", `${sticky[0] || 0}px`);
    document.documentElement.style.setProperty("--bars", `${sticky.reduce((sum, height) => sum + height, 0)}px`);
  };
  new ResizeObserver(measure).observe(document.body);
  measure();
  addEventListener("hashchange", openTarget);
  openTarget();
};
