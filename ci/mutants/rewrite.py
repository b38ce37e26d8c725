"""Writes a source in which every mutant of its points can be switched on by its number.

    mutated = rewrite(text, points, numbers)       # numbers[i][j]: of alternative j of point i; None: leave it out

The forms of a switch, for mutant 17:

    value        (on(17) ? (mutated) : (original))
    condition    (on(17) ? bool(mutated) : bool(original))
    statement    { if (!on(17)) { original; } }
    arguments    (on(17) ? (second) : (first)), (state == 17 ? (first) : (second))
    range        in_order(17, original)
    alias        copied(on(17), original)

With a probe, on(17) is (state < 0 ? seen(17, probe) : on(17)). Points within points are rendered in the original only: one mutant
is switched on at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from points import Point

SPACE = "::lockstep::mutants::"
INCLUDE = '#include "engine/core/mutants_switch.hpp"\n'
FORMS = ["statement", "arguments", "range", "alias", "condition", "value"]  # outer before inner, for equal stretches


@dataclass
class Rewritten:
    text: str
    stretches: list[tuple[int, int, list[int]]]  # begin and end in the text, numbers of the mutants

    def mutants_at(self, offset: int) -> list[int]:
        """Those of the innermost stretch that contains the offset."""
        found = [one for one in self.stretches if one[0] <= offset < one[1]]
        return min(found, key=lambda one: one[1] - one[0])[2] if found else []


def rewrite(text: str, points: list[Point], numbers: list[list[int | None]]) -> Rewritten:
    used = [(point, own) for point, own in zip(points, numbers) if any(number is not None for number in own)]
    used.sort(key=lambda one: (one[0].begin, -one[0].end, FORMS.index(one[0].form)))
    marked, _ = _render(text, used, 0, 0, len(text))
    return _unmark(INCLUDE + marked)


def _render(text: str, used: list, at: int, begin: int, end: int) -> tuple[str, int]:
    """The stretch with the switches of the points from `at` on that lie in it, and the first point behind it."""
    pieces, place = [], begin
    while at < len(used) and used[at][0].end <= end and used[at][0].begin < end:
        point, own = used[at]
        if point.begin < place:  # overlaps the last one without lying in it
            at += 1
            continue
        pieces.append(text[place : point.begin])
        switched, at = _switch(text, used, at)
        pieces.append(f"\x01{','.join(str(one) for one in own if one is not None)}\x02{switched}\x03")
        place = point.end
    pieces.append(text[place:end])
    return "".join(pieces), at


def _switch(text: str, used: list, at: int) -> tuple[str, int]:
    point, own = used[at]
    chosen = [(number, one) for number, one in zip(own, point.alternatives) if number is not None]
    on = [_on(number, one.probe) for number, one in chosen]
    if point.form == "arguments":
        first_begin, first_end, second_begin, second_end = point.parts
        first, at = _render(text, used, at + 1, first_begin, first_end)
        second, at = _render(text, used, at, second_begin, second_end)
        source = [text[first_begin:first_end], text[second_begin:second_end]]
        between = text[first_end:second_begin]
        again = f"{SPACE}state == {chosen[0][0]}"
        return f"({on[0]} ? ({source[1]}) : ({first})){between}({again} ? ({source[0]}) : ({second}))", at
    original, at = _render(text, used, at + 1, point.begin, point.end)
    if point.form == "statement":
        return f"{{ if (!{on[0]}) {{ {original} }} }}", at
    if point.form == "range":
        return f"{SPACE}in_order({chosen[0][0]}, {original})", at
    if point.form == "alias":
        return f"{SPACE}copied({on[0]}, {original})", at
    cast = "static_cast<bool>" if point.form == "condition" else ""
    choices = "".join(f"{switch} ? {cast}({one.text}) : " for switch, (_, one) in zip(on, chosen))
    return f"({choices}{cast}({original}))", at


def _on(number: int, probe: str) -> str:
    on = f"{SPACE}on({number})"
    return f"({SPACE}state < 0 ? {SPACE}seen({number}, static_cast<bool>({probe})) : {on})" if probe else on


def _unmark(marked: str) -> Rewritten:
    pieces: list[str] = []
    stretches: list[tuple[int, int, list[int]]] = []
    open_: list[tuple[int, list[int]]] = []
    length = 0
    for chunk in marked.split("\x01"):
        if stretches or open_ or pieces:
            numbers, chunk = chunk.split("\x02", 1)
            open_.append((length, [int(one) for one in numbers.split(",")]))
        parts = chunk.split("\x03")
        for i, part in enumerate(parts):
            if i > 0:
                begin, own = open_.pop()
                stretches.append((begin, length, own))
            pieces.append(part)
            length += len(part)
    return Rewritten("".join(pieces), stretches)
