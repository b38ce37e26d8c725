"""Reading results.jsonl. A killed run leaves a file with a truncated last line; the lines before it are read."""

from __future__ import annotations

import json
from pathlib import Path

from .model import Case, Results
from .rows import case_from, run_from, summary_from

SCHEMA = 1
MAX_LINE_CHARACTERS = 64 * 1024 * 1024


class UnreadableResults(Exception):
    """The file is not a results file at all."""


def _constant(name: str) -> float:
    # JSON has no such numbers, and the format writes them as text. NaN and Infinity of other writers are accepted too.
    return float(name.replace("Infinity", "inf"))


def read_results(path: Path) -> Results:
    results = Results(source=str(path))
    num_rows = 0
    try:
        # Bytes that are not UTF-8 must not hide the other rows.
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            number = 0
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                row = _row(line)
                if row is None:
                    if line.endswith("\n"):
                        results.unreadable_lines.append(number)
                    else:
                        results.cut_line = number
                    continue
                num_rows += 1
                if row.get("kind") == "run" and row.get("schema", SCHEMA) != SCHEMA:
                    raise UnreadableResults(f"{path}: the file has schema {row['schema']!r}, but this program reads schema {SCHEMA}")
                _add(results, row, number)
    except OSError as error:
        raise UnreadableResults(f"{path}: {error.strerror}") from error
    if num_rows == 0 and (results.unreadable_lines or results.cut_line):
        raise UnreadableResults(f"{path}: no line of it is a JSON object; is this a results file of `lockstep run --results`?")
    return results


def _row(line: str) -> dict | None:
    if len(line) > MAX_LINE_CHARACTERS:
        return None
    try:
        row = json.loads(line, parse_constant=_constant)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _add(results: Results, row: dict, number: int) -> None:
    kind = row.get("kind")
    if kind == "run":
        results.run = run_from(row)
    elif kind == "case":
        case: Case = case_from(row)
        case.index = len(results.cases)
        results.cases.append(case)
    elif kind == "summary":
        results.summary = summary_from(row)
    else:
        results.unknown_rows.append(number)
