"use strict";
(() => {
  const query = document.getElementById("query");
  const shown = document.getElementById("shown");
  const nothing = document.getElementById("nothing");
  const groups = [...document.querySelectorAll("details.group")].map((element) => ({
    element,
    cases: [...element.querySelectorAll(":scope > details.case")].map((element) => ({
      element,
      words: element.dataset.words,
      status: element.dataset.status,
    })),
  }));
  const toggles = [...document.querySelectorAll(".filter .chip")];
  const wanted = new Set();

  // A word with = or : is looked for whole, so that test:1 is not test:16; any other as a part of a word.
  const holds = (words, tokens) =>
    tokens.every((token) => (/[=:]/.test(token) ? words.includes(` ${token} `) : words.includes(token)));

  const apply = () => {
    const tokens = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const active = tokens.length > 0 || wanted.size > 0;
    let visible = 0;
    let total = 0;
    for (const group of groups) {
      let any = 0;
      for (const one of group.cases) {
        const match = (wanted.size === 0 || wanted.has(one.status)) && holds(one.words, tokens);
        one.element.hidden = !match;
        any += match;
      }
      group.element.hidden = any === 0;
      if (active && any > 0 && any <= 50) group.element.open = true;
      visible += any;
      total += group.cases.length;
    }
    shown.textContent = active ? `${visible} of ${total} cases` : `${total} cases`;
    nothing.hidden = visible > 0;
    for (const toggle of toggles) toggle.setAttribute("aria-pressed", String(wanted.has(toggle.dataset.status)));
  };

  const go = (text, status) => {
    query.value = text;
    wanted.clear();
    if (status) wanted.add(status);
    for (const group of groups) group.element.open = false;
    apply();
    document.getElementById("cases").scrollIntoView();
  };

  const openTarget = () => {
    const target = location.hash.startsWith("#case-") && document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.hidden || target.parentElement.hidden) go("", null);
    target.parentElement.open = true;
    target.open = true;
    target.scrollIntoView({ block: "center" });
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
    query.addEventListener("input", apply);
    document.getElementById("clear").addEventListener("click", () => go("", null));
    document.addEventListener("keydown", (event) => {
      if (event.key === "/" && document.activeElement !== query) {
        event.preventDefault();
        query.focus();
      }
    });
    apply();
  }
  addEventListener("hashchange", openTarget);
  openTarget();
})();
