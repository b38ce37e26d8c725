"""The #include lines of the C++ sources, for check_layers.py and check_headers.py."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SOURCE_FOLDERS = ("engine", "harness")
SUFFIXES = (".hpp", ".cpp")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)[">]')
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Include:
    line: int
    target: str
    quoted: bool


def includes_of(text: str) -> list[Include]:
    """The includes of a source. Line numbers count from 1. Includes in block comments are ignored."""
    text = _BLOCK_COMMENT.sub(lambda match: "\n" * match.group().count("\n"), text)
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match:
            found.append(Include(number, match.group(2), match.group(1) == '"'))
    return found


def source_files(root: Path) -> list[Path]:
    return sorted(
        path
        for folder in SOURCE_FOLDERS
        for path in (root / folder).rglob("*")
        if path.suffix in SUFFIXES and path.is_file()
    )
