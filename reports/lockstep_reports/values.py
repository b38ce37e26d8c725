"""The values of a results file's fields, where each may be missing or of the wrong type: what cannot be understood becomes
None, or is left out. No function here guesses a value.
"""

from __future__ import annotations

import math
import struct
from typing import Any


# Characters that steer a terminal, hide text or change the direction of reading are shown as their codes.
_HIDDEN = [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
_CODES = {code: f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" for code in _HIDDEN}
_ONE_LINE = {**_CODES, ord("\n"): "\\n", ord("\t"): "\\t"}
_LINES = {code: shown for code, shown in _CODES.items() if chr(code) not in "\n\t"}


def text_of(value: Any) -> str | None:
    """A text of any number of lines, without hidden characters."""
    if value is None:
        return None
    return (value if isinstance(value, str) else str(value)).translate(_LINES)


def name_of(value: Any) -> str | None:
    """A text on one line, without hidden characters."""
    return None if value is None else str(value).translate(_ONE_LINE)


def shown_in(value: Any) -> Any:
    """A value of JSON with each of its texts on one line, without hidden characters."""
    if isinstance(value, str):
        return value.translate(_ONE_LINE)
    if isinstance(value, list):
        return [shown_in(item) for item in value]
    if isinstance(value, dict):
        return {str(key).translate(_ONE_LINE): shown_in(item) for key, item in value.items()}
    return value


def number_of(value: Any) -> float | None:
    """A number; also `nan`, `inf`, `-inf` as text, which is how the format writes what JSON cannot."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def count_of(value: Any) -> int | None:
    number = number_of(value)
    return int(number) if number is not None and math.isfinite(number) else None


def map_of(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list:
    return value if isinstance(value, list) else []


def same_bits(a: float, b: float) -> bool:
    """Not-a-number equals nothing, and the two zeros differ."""
    return not math.isnan(a) and not math.isnan(b) and struct.pack("<d", a) == struct.pack("<d", b)


def numbers_by_rank(value: Any) -> list[list[float]] | None:
    ranks = [_numbers(rank) for rank in list_of(value)]
    return ranks if any(ranks) else None


def _numbers(value: Any) -> list[float]:
    """The numbers of a list, of lists in it too; what is none becomes not-a-number, so that places keep their index."""
    if isinstance(value, list):
        return [number for item in value for number in (_numbers(item) if isinstance(item, list) else [_or_nan(item)])]
    number = number_of(value)
    return [] if number is None else [number]


def _or_nan(value: Any) -> float:
    number = number_of(value)
    return math.nan if number is None else number
