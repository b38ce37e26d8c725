"""The tests that scenarios mirror by number, document by document.

documents.json is generated from the table in harness/scenario/documents.cpp; a test of that folder keeps it fresh.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Document:
    title: str
    about: str
    tests: dict[int, str]  # number -> name


def _read() -> tuple[Document, ...]:
    rows = json.loads(Path(__file__).with_name("documents.json").read_text(encoding="utf-8"))
    return tuple(
        Document(row["title"], row["about"], {int(number): name for number, name in row["tests"].items()}) for row in rows
    )


DOCUMENTS = _read()
NUM_TESTS = sum(len(document.tests) for document in DOCUMENTS)
