#!/usr/bin/env python3
"""Writes the HTML page of a results file.

    lockstep_report.py RESULTS -o FOLDER       writes FOLDER/index.html

The page is one file that contains its plots, styles and scripts. Exit codes: 0 written, 2 wrong usage or no
results file, 3 a package is missing.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))


def write_atomically(file: Path, text: str) -> None:
    """Replaces the page atomically: a reader sees the old page or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with open(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="lockstep_report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", metavar="RESULTS", type=Path, help="results.jsonl of a run")
    parser.add_argument("-o", "--output", metavar="FOLDER", type=Path, required=True, help="where index.html goes")
    parser.add_argument("--max-plots", metavar="N", type=int, default=24, help="loss curves to draw at most (24)")
    parser.add_argument("--max-timelines", metavar="N", type=int, default=8, help="timelines to draw at most (8)")
    options = parser.parse_args(arguments)

    # matplotlib builds a cache of fonts. Without a home folder it uses a temporary one.
    if not os.environ.get("MPLCONFIGDIR") and not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ["MPLCONFIGDIR"] = tempfile.mkdtemp(prefix="lockstep-matplotlib-")
    try:
        from lockstep_reports.page import render
        from lockstep_reports.reading import UnreadableResults, read_results
    except ImportError as error:
        print(
            f"lockstep report: {error}; on Debian: apt-get install python3-matplotlib python3-jinja2",
            file=sys.stderr,
        )
        return 3

    try:
        results = read_results(options.results)
    except UnreadableResults as error:
        print(f"lockstep report: {error}", file=sys.stderr)
        return 2
    page = options.output / "index.html"
    try:
        write_atomically(page, render(results, max_plots=options.max_plots, max_timelines=options.max_timelines))
    except OSError as error:
        print(f"lockstep report: {page}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
