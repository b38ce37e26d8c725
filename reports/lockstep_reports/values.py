"""The values of a results file's fields, where each may be missing or of the wrong type: what cannot be understood becomes
None, or is left out. No function here guesses a value.
"""

from __future__ import annotations

import math
import struct
from typing import Any


def text_of(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else str(value)


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
