"""Numbers formatted for readers."""

from __future__ import annotations

import math

NONE = "\N{EN DASH}"


def format_count(value: float | None) -> str:
    """1234567 -> 1 234 567, with narrow spaces."""
    if value is None:
        return NONE
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def format_bytes(value: float | None) -> str:
    if value is None:
        return NONE
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}" if abs(value) < 1000 * size else f"{value / size:.0f} {unit}"
    return f"{value:.0f} B"


def format_seconds(value: float | None) -> str:
    if value is None:
        return NONE
    if not math.isfinite(value):
        return str(value)
    if value >= 60:
        return f"{int(value // 60)} min {value % 60:.0f} s"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.3g} ms"


def format_difference(value: float | None) -> str:
    if value is None:
        return NONE
    if value == 0:
        return "0"
    return f"{value:.3g}"


def format_tolerance(rtol: float | None, atol: float | None, of_largest: float | None) -> str:
    """The loosest tolerance, with the names of the scenario language."""
    parts = [
        f"{name} {value:.3g}"
        for name, value in (("rtol", rtol), ("atol", atol), ("of_largest", of_largest))
        if value is not None and not (name == "of_largest" and value == 0)
    ]
    if not parts:
        return NONE
    if not any((rtol, atol, of_largest)):
        return "exact"
    return ", ".join(parts)
