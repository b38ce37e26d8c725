"""The page in a real browser: what its script makes of it, and that nothing sticks out or overlaps.

A copy of the page gets a script of the test's own at its end, which types and clicks as a reader would and writes down
what it sees; the browser prints the document that results.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import sample
from lockstep_reports.model import STATUSES
from lockstep_reports.page import render
from lockstep_reports.reading import read_results
from test_timeline import case_with

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = os.environ.get("LOCKSTEP_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine; on Debian: apt-get install chromium")

WATCH = """<script>
"use strict";
window.problems = [];
addEventListener("error", (event) => problems.push(String(event.message)));
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const all = (selector) => [...document.querySelectorAll(selector)];
const seen = (element) => element.getClientRects().length > 0;
const type = async (text) => {
  const box = document.getElementById("query");
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  await wait(120);
};
const choose = async (name, value) => {
  const select = document.getElementById(`by-${name}`);
  select.value = value;
  select.dispatchEvent(new Event("change", { bubbles: true }));
  await wait(20);
};
const overlaps = (a, b) => a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5;
const overlapping = (selector) => {
  const found = [];
  const rects = all(selector).filter(seen).map((element) => [element.textContent.slice(0, 30), element.getBoundingClientRect()]);
  rects.forEach(([name, rect], at) => rects.slice(at + 1).forEach(([other, with_]) => overlaps(rect, with_) && found.push([name, other])));
  return found.slice(0, 5);
};
</script>"""


def look(tmp_path: Path, text: str, script: str, width: int = 1280, fragment: str = "") -> dict:
    """What `script`, the body of an async function, returns in the page."""
    act = """<script>addEventListener("load", async () => {
      let result;
      try { await started; result = await (async () => {%s})(); } catch (error) { problems.push(String(error.stack || error)); }
      const note = document.createElement("pre");
      note.id = "what-the-test-saw";
      note.textContent = JSON.stringify({ result, problems });
      document.body.append(note);
    });</script>"""
    page = tmp_path / "page.html"
    page.write_text(text.replace("<head>", "<head>" + WATCH, 1).replace("</body>", act % script + "</body>", 1), encoding="utf-8")
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={width},900", "--virtual-time-budget=20000", "--dump-dom", page.as_uri() + fragment,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    found = re.search(r'<pre id="what-the-test-saw">(.*?)</pre>', ran.stdout, flags=re.DOTALL)
    assert found, f"{command[0]} ended with {ran.returncode}; it said {ran.stderr[-2000:]}"
    saw = json.loads(found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", "\u00a0").replace("&amp;", "&"))
    assert saw["problems"] == []
    return saw["result"]


def page_text(tmp_path: Path, rows: list[dict]) -> str:
    return render(read_results(sample.write(tmp_path / "results.jsonl", rows)))


VISIBLE = "all('details.case').filter((one) => !one.hidden && !one.parentElement.hidden).length"


def test_the_filter_finds_by_text_verdict_document_launch_and_device(tmp_path):
    rows = sample.rows(120)
    cases = rows[1:-1]
    for case in cases[::3]:
        case["launch"] = "thread"
    seen = look(
        tmp_path,
        page_text(tmp_path, rows),
        f"""
        const count = () => {VISIBLE};
        const got = {{ all: count() }};
        await type('replicate'); got.text = count(); got.said = document.getElementById('shown').textContent;
        await type('12 of 256 elements'); got.message = count();
        await type('world_size=4'); got.word = count();
        await type('test:1'); got.test = count();
        await type('nothing has this name'); got.none = count(); got.nothing = seen(document.getElementById('nothing'));
        await type('');
        await choose('launch', 'thread'); got.launch = count();
        await choose('device', 'sim'); got.both = count();
        document.getElementById('clear').click(); got.cleared = count();
        await choose('document', '4'); got.document = count();
        document.getElementById('clear').click();
        all('.filter .chip').find((chip) => chip.textContent === 'FAIL').click(); got.verdict = count();
        got.pressed = all('.filter .chip[aria-pressed=true]').length;
        return got;
        """,
    )

    def number(holds) -> int:
        return sum(map(holds, cases))

    assert seen["all"] == seen["cleared"] == 120
    assert seen["text"] == number(lambda case: "replicate" in case["scenario"])
    assert seen["said"] == f"{seen['text']} of 120 cases"
    assert seen["message"] == number(lambda case: "failure" in case) > 0
    assert seen["word"] == number(lambda case: case["world_size"] == 4) > 0
    assert seen["test"] == number(lambda case: case["mirrors"] == 1) > 0  # and none of the tests 10 to 19
    assert seen["none"] == 0 and seen["nothing"]
    assert seen["launch"] == number(lambda case: case["launch"] == "thread")
    assert seen["both"] == number(lambda case: case["launch"] == "thread" and case["device"] == "sim") > 0
    assert seen["document"] == number(lambda case: case["scenario"].startswith("training/")) > 0
    assert seen["verdict"] == number(lambda case: case["status"] == "FAIL") > 0
    assert seen["pressed"] == 1


def test_a_case_is_put_together_when_it_is_opened(tmp_path):
    rows = [sample.case_row(random.Random(3), 8, "FAIL"), *sample.rows(20)[1:-1]]
    seen = look(
        tmp_path,
        page_text(tmp_path, rows),
        """
        const one = document.getElementById('case-0');
        const linked = [one.open, one.parentElement.open, one.querySelectorAll('.body table').length];
        const empty = all('details.case .body').filter((body) => body.firstChild).length;
        const other = document.getElementById('case-5');
        other.parentElement.open = true; other.querySelector('summary').click(); await wait(50);
        const plan = one.querySelector('table.plan');
        return { linked, empty, filled: other.querySelector('.body').children.length,
                 heads: [...plan.querySelectorAll('th')].map((cell) => cell.textContent),
                 off: [...plan.querySelectorAll('td.off')].map((cell) => cell.textContent),
                 differs: plan.querySelectorAll('tr.differs').length, rows: plan.querySelectorAll('tbody tr').length,
                 message: one.querySelector('pre.message').textContent, repro: one.querySelector('.repro code').textContent };
        """,
        fragment="#case-0",
    )
    assert seen["linked"] == [True, True, 2]
    assert seen["empty"] == 1, "only the case that the address names is put together"
    assert seen["filled"] > 2
    assert seen["heads"][4:] == ["phase", "planned", "observed", "bytes planned", "bytes observed"]
    assert seen["off"] == ["4", "4\u202f096"]
    assert (seen["differs"], seen["rows"]) == (1, 2)
    assert seen["message"] == rows[0]["failure"]["message"]
    assert seen["repro"] == rows[0]["repro"]


def test_the_timeline_has_its_boxes_zooms_and_tells_what_they_are(tmp_path):
    ranks, iterations = 2, 3
    text = page_text(tmp_path, [case_with(tmp_path, sample.trace(ranks, iterations))])
    seen = look(
        tmp_path,
        text,
        """
        const holder = document.getElementById('timeline-0');
        const boxes = () => holder.querySelectorAll('rect.box').length;
        const got = { open: holder.open, boxes: boxes(), lanes: holder.querySelectorAll('rect.lane').length,
                      joins: holder.querySelectorAll('path.join').length, waits: holder.querySelectorAll('rect.wait').length,
                      ranks: [...holder.querySelectorAll('text.rank')].map((text) => text.textContent),
                      kinds: [4, 5].map((kind) => holder.querySelectorAll(`rect.box.k${kind}`).length) };
        const gather = holder.querySelector('rect.box.k4');
        gather.dispatchEvent(new PointerEvent('pointermove', { bubbles: true }));
        got.told = holder.querySelector('.readout').textContent;
        got.lit = holder.querySelectorAll('rect.box.lit').length;
        const wide = () => holder.querySelector('rect.box.k0').getBoundingClientRect().width;
        const press = async (which) => { holder.querySelector(`[data-zoom=${which}]`).click(); await wait(80); };
        await press('in'); await press('in'); await press('in'); got.zoomed = boxes();
        got.scale = holder.querySelector('rect.box.k3').getBoundingClientRect().width;
        await press('right'); await press('all'); got.back = boxes();
        got.whole = holder.querySelector('rect.box.k3').getBoundingClientRect().width;
        const svg = holder.querySelector('svg.lanes');
        const at = svg.getBoundingClientRect();
        svg.dispatchEvent(new WheelEvent('wheel', { deltaY: -700, ctrlKey: true, clientX: at.left + 300, bubbles: true, cancelable: true }));
        await wait(80); got.wheeled = boxes();
        svg.dispatchEvent(new KeyboardEvent('keydown', { key: '0' })); await wait(80); got.reset = boxes();
        const area = holder.querySelector('.overtime svg');
        got.memory = area !== null && seen(area);
        return got;
        """,
    )
    boxes = ranks * (1 + iterations * sample.BOXES_A_RANK_AND_ITERATION)
    assert seen["open"] and seen["boxes"] == boxes == seen["back"] == seen["reset"]
    assert seen["lanes"] == ranks * 4
    assert seen["ranks"] == ["rank 0", "rank 1"]
    assert seen["kinds"] == [ranks * iterations, ranks * iterations]
    assert seen["joins"] == 2 * iterations
    assert seen["waits"] == ranks * iterations
    assert seen["told"].startswith("rank 0, cpu/all_gather: all_gather, 90 \u00b5s from 30 \u00b5s; data_parallel, forward, group of 2")
    assert "waited for after 70 \u00b5s" in seen["told"]
    assert seen["lit"] == ranks, "its boxes on all ranks stand out"
    assert 0 < seen["zoomed"] < boxes and 0 < seen["wheeled"] < boxes
    assert seen["scale"] > 4 * seen["whole"]
    assert seen["memory"]


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_sticks_out_or_overlaps(tmp_path, width):
    rows = sample.rows(60)
    rows[1:2] = [case_with(tmp_path, sample.trace(4, 6))]
    seen = look(
        tmp_path,
        page_text(tmp_path, rows),
        """
        for (const one of all('details.group, #case-0, #case-7, details.card')) one.open = true;
        await wait(300);
        const room = document.documentElement.clientWidth;
        const inside = (element) => { for (let at = element; at; at = at.parentElement)
          if (/auto|scroll|hidden/.test(getComputedStyle(at).overflowX)) return true; return false; };
        return { room, page: document.documentElement.scrollWidth,
                 out: all('main *, header *').filter((one) => seen(one) && !one.closest('svg') && !inside(one) && one.getBoundingClientRect().right > room + 1)
                   .slice(0, 5).map((one) => one.outerHTML.slice(0, 120)),
                 names: overlapping('.timeline svg.lanes text.name, .timeline svg.lanes text.rank'), ticks: overlapping('.timeline svg.axis text'),
                 labels: overlapping('.timeline svg.lanes text.label'), tools: overlapping('.filter input, .filter select, .filter .chip, #clear, #shown'),
                 summaries: overlapping('#case-0 > summary > *'), heads: overlapping('.overtime svg text') };
        """,
        width=width,
    )
    assert seen["page"] <= seen["room"], "the page scrolls sideways"
    for name in ("out", "names", "ticks", "labels", "tools", "summaries", "heads"):
        assert seen[name] == [], name


def test_a_link_to_a_case_shows_it_below_the_bars(tmp_path):
    seen = look(
        tmp_path,
        page_text(tmp_path, sample.rows(120)),
        """
        const at = () => {
          const bars = all('nav, .filter').filter((bar) => getComputedStyle(bar).position === 'sticky');
          return [document.querySelector(location.hash).getBoundingClientRect().top,
                  Math.max(...bars.map((bar) => bar.getBoundingClientRect().bottom)), innerHeight];
        };
        await wait(100);
        const first = at();
        const link = document.createElement('a'); link.href = '#case-90'; document.body.append(link); link.click();
        await wait(100);
        return [first, at()];
        """,
        fragment="#case-40",
    )
    for top, below_bars, height in seen:
        assert below_bars - 1 <= top < height / 2


# The ratio of the luminances of a text and of what lies behind it, as WCAG 2.1 defines it (1.4.3: 4.5, or 3 for large text).
CONTRAST = """
  const canvas = document.createElement('canvas'); canvas.width = canvas.height = 1;
  const brush = canvas.getContext('2d', { willReadFrequently: true });
  const over = (color, behind) => {
    brush.fillStyle = `rgb(${behind.join(' ')})`; brush.fillRect(0, 0, 1, 1);
    brush.fillStyle = color; brush.fillRect(0, 0, 1, 1);
    return [...brush.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => element ? over(getComputedStyle(element).backgroundColor, behind(element.parentElement)) : [255, 255, 255];
  const poor = new Map();
  let looked = 0;
  for (const element of all('body *')) {
    if (!seen(element) || element.closest('svg, #what-the-test-saw') || ![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
    const style = getComputedStyle(element), ground = behind(element);
    const [a, b] = [luminance(over(style.color, ground)), luminance(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    looked += 1;
    if (ratio < (large ? 3 : 4.5)) poor.set(`${element.tagName}.${element.className}`, `${ratio.toFixed(2)}: ${element.textContent.slice(0, 40)}`);
  }
  return { looked, poor: [...poor] };
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_what_lies_behind_them(tmp_path, scheme):
    rows = sample.rows(120)
    rows[1:2] = [case_with(tmp_path, sample.trace(2, 3))]
    for number, status in enumerate(STATUSES):
        rows[-1:-1] = [sample.case_row(random.Random(number), 200 + number, status)]
    text = page_text(tmp_path, rows)
    if scheme == "dark":  # as for a reader who prefers it
        text = text.replace("@media (prefers-color-scheme: dark)", "@media all")
    seen = look(tmp_path, text, "for (const one of all('details')) one.open = true; await wait(300);" + CONTRAST)
    assert seen["looked"] > 500
    assert seen["poor"] == []


def test_a_thousand_cases_are_light_and_quickly_filtered(tmp_path):
    seen = look(
        tmp_path,
        page_text(tmp_path, sample.rows(1000)),
        f"""
        const nodes = all('*').length;
        const start = performance.now();
        const box = document.getElementById('query'); box.value = 'hsdp'; box.dispatchEvent(new Event('input'));
        await wait(70);
        return {{ nodes, visible: {VISIBLE}, filled: all('details.case .body > *').length }};
        """,
    )
    assert seen["visible"] == sum("hsdp" in row["scenario"] for row in sample.rows(1000)[1:-1]) > 0
    assert seen["filled"] == 0
    assert seen["nodes"] < 60_000
