"""What a run under a fault must still keep: it ends, says what failed, returns a documented code, and leaves nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import xml.etree.ElementTree
from pathlib import Path

from points import Point
from sandbox import Ran
from scenes import Scene

# Of texts that differ from run to run.
_CHANGING = re.compile(r"\d+(\.\d+)?(e-?\d+)? (s|ms|us)\b|lockstep-run-\w+|\b0x[0-9a-f]+|\d{4}-\d\d-\d\dT[\d:.]+Z?")


def normal(text: str, folder: Path) -> str:
    return re.sub(r"\s+", " ", _CHANGING.sub("#", text.replace(str(folder), "")))


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def verdicts_of(folder: Path) -> dict[str, str]:
    """Status per case of the results file; empty without one."""
    path = folder / "out" / "results.jsonl"
    return {row["case"]: row["status"] for row in rows_of(path) if row["kind"] == "case"} if path.exists() else {}


def messages_of(folder: Path) -> list[str]:
    """The messages of failures and the reasons of results that are missing."""
    path = folder / "out" / "results.jsonl"
    found = []
    for row in rows_of(path) if path.exists() else []:
        failure = row.get("failure") or {}
        found += [failure.get("message", ""), row.get("reason", ""), *map(str, failure.get("also", []))]
    return found


def problems_of_files(folder: Path, failed: bool = False) -> list[str]:
    """Files that are half-written under their final names, and temporary ones."""
    found = []
    for path in sorted((folder / "tmp").rglob("*")):
        found.append(f"left in TMPDIR: {path.relative_to(folder)}")
        break
    for path in sorted((folder / "out").rglob("*")):
        name = str(path.relative_to(folder))
        # A save that fails may leave its temporary folder, which the next save of the checkpoint removes.
        if ".part" in path.name or (".saving" in path.name and not failed):
            found.append(f"temporary file left: {re.sub(r'[0-9]{3,}', 'N', name)}")
        if path.is_dir() or path.is_symlink():
            continue
        text = path.read_bytes()
        try:
            if path.suffix == ".jsonl":
                for line in text.decode().splitlines():
                    json.loads(line)
                if text and not text.endswith(b"\n"):
                    raise ValueError("incomplete line")
            elif path.suffix == ".json":
                json.loads(text)
            elif path.suffix == ".xml":
                xml.etree.ElementTree.fromstring(text)
            elif path.suffix == ".html" and b"</html>" not in text[-200:]:
                raise ValueError("incomplete page")
            elif path.suffix == ".safetensors":
                size = int.from_bytes(text[:8], "little")
                header = json.loads(text[8 : 8 + size])
                end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
                if len(text) != 8 + size + end:
                    raise ValueError(f"{len(text)} bytes, and the header says {8 + size + end}")
        except (ValueError, xml.etree.ElementTree.ParseError) as error:
            found.append(f"not whole: {name}: {error}")
    return found


def is_named(text: str, point: Point) -> bool:
    """Whether the text names the failure, and a remedy in parentheses behind it."""
    if point.target == "standard output" and "standard output could not be written" in text:
        return True  # the reason of an earlier call may have replaced the errno
    what = r"out of memory|cannot allocate memory|memory left|refuses this process more memory" if point.call == "new" else re.escape(os.strerror(point.reason))
    if point.call == "stat":  # the library takes a path about which it learns nothing for an absent one
        what += "|" + re.escape(os.strerror(errno.ENOENT))
    return re.search(f"({what})" + r"[^\n]*(\n[^\n]*)?\([^\n)]{8,}", text, re.IGNORECASE) is not None


def _judge_start_of_hosts(point: Point, ran: Ran, problems: list[str]) -> tuple[str, list[str]]:
    """Before the hosts have found each other, one cannot know why another is absent: 2, with a message that says which."""
    at_fault = int(point.process[1])
    for number, code in enumerate(ran.exit_codes):
        if code != 3 and not (code == 2 and number != at_fault):
            problems.append(f"exit code {code} of process {number}")
    if not is_named(ran.said(), point):
        problems.append("no message names what failed and a remedy")
    return "refused", problems


def _is_last_word(scene: Scene, point: Point, ran: Ran, clean: Ran) -> bool:
    """A process failed alone when the run was over: its output could not be written, or its farewell not be sent."""
    at_fault = int(point.process[1])
    others = {code for number, code in enumerate(ran.exit_codes) if number != at_fault}
    return ran.exit_codes[at_fault] == 3 and others == {scene.exit_code} and verdicts_of(ran.folder) == verdicts_of(clean.folder)


def judge(scene: Scene, point: Point, ran: Ran, clean: Ran) -> tuple[str, list[str]]:
    """The class of the run (unreached, tolerated, verdict, refused), and what is wrong with it."""
    problems = list(ran.left) and [f"left: {', '.join(ran.left)}"]
    problems += problems_of_files(ran.folder, set(ran.exit_codes) == {1})
    if not ran.reached:
        return "unreached", problems
    if None in ran.exit_codes:
        return "hang", problems + [f"no end within {ran.seconds:.0f} s"]
    if len(ran.exit_codes) > 1 and not verdicts_of(ran.folder):
        return _judge_start_of_hosts(point, ran, problems)
    if len(set(ran.exit_codes)) > 1 and not _is_last_word(scene, point, ran, clean):
        problems.append(f"the processes end with {ran.exit_codes}")
    code = max(ran.exit_codes, key=lambda each: (each != 3, each))
    verdicts, expected = verdicts_of(ran.folder), verdicts_of(clean.folder)
    if code == scene.exit_code and verdicts == expected:
        same = normal(ran.output[0], ran.folder) == normal(clean.output[0], clean.folder)
        if same:
            return "tolerated", problems
        # Of a scene that fails without a fault: another failure.
        named = any(is_named(text, point) for text in [*messages_of(ran.folder), ran.said()])
        return "verdict", problems + ([] if named else ["the same exit code and verdicts, and other output"])
    texts = messages_of(ran.folder)
    if code == 1:
        if not any(status not in ("PASS", "SKIP") for status in verdicts.values()):
            problems.append("exit code 1 without an unexpected result")
        if not any(is_named(text, point) for text in [*texts, ran.said()]):
            problems.append("no failure names what failed and a remedy")
        return "verdict", problems
    if code != 3:
        problems.append(f"exit code {code}")
    if not is_named(ran.said(), point):
        problems.append("no message names what failed and a remedy")
    for case, status in verdicts.items():
        if status not in (expected.get(case), "MISSING", "CRASH", "FAIL", "INVALID", "HANG"):
            problems.append(f"{case}: {status}")
    return "refused", problems
