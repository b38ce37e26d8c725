"""The values of expressions while no seeded defect is armed (engine/core/defects.hpp). No mutant changes a defect alone.

    defects = Defects(text)
    defects.value_of(cursor)        # True or False: it depends on defects only; None: on more, or on none
    defects.leave_out(begin, end)   # runs under a defect only
    defects.unused(unit_cursor)     # stretches of local functions that are called from such stretches alone

A variable and a function of the same source whose value depends on defects only count like the question itself.
"""

from __future__ import annotations

import re

from clang.cindex import CursorKind as Kind
from clang.cindex import LinkageKind

QUESTION = "defect_armed"
LOGICAL = {"&&": False, "||": True}  # the value of one operand that decides
FUNCTIONS = (Kind.FUNCTION_DECL, Kind.CXX_METHOD)
LEAVES = re.compile(r"(\[\[\w+\]\]\s*)?\{?\s*(return|throw|continue|break)\b")


def span(cursor) -> tuple[int, int]:
    return cursor.extent.start.offset, cursor.extent.end.offset


class Defects:
    def __init__(self, text: str):
        self.text = text
        self.is_mentioned = QUESTION in text
        self.stretches: list[tuple[int, int]] = []  # run under a defect only
        self.known: dict[int, bool | None] = {}  # of variables and functions, by the hash of their cursors

    # ---- values

    def value_of(self, cursor) -> bool | None:
        if not self.is_mentioned:
            return None
        kind, children = cursor.kind, list(cursor.get_children())
        if kind in (Kind.UNEXPOSED_EXPR, Kind.PAREN_EXPR) and len(children) == 1:
            return self.value_of(children[0])
        if kind == Kind.UNARY_OPERATOR and self.text[span(cursor)[0]] == "!":
            inner = self.value_of(children[0])
            return None if inner is None else not inner
        if kind == Kind.BINARY_OPERATOR and len(children) == 2 and self.sign_of(children) in LOGICAL:
            deciding = LOGICAL[self.sign_of(children)]
            values = [self.value_of(one) for one in children]
            return deciding if deciding in values else None if None in values else not deciding
        if kind == Kind.CONDITIONAL_OPERATOR and len(children) == 3:
            condition = self.value_of(children[0])
            if condition is not None:
                return self.value_of(children[1 if condition else 2])
            values = [self.value_of(one) for one in children[1:]]
            return values[0] if values[0] == values[1] else None
        if kind in (Kind.CALL_EXPR, Kind.DECL_REF_EXPR):
            return False if cursor.spelling == QUESTION else self.of_declaration(cursor.referenced)
        return None

    def sign_of(self, operands) -> str:
        return self.text[span(operands[0])[1] : span(operands[1])[0]].strip(" \n()")

    def of_declaration(self, declared) -> bool | None:
        """The value of a constant variable or of a function that only returns."""
        if declared is None or declared.kind not in (Kind.VAR_DECL, *FUNCTIONS):
            return None
        definition = declared.get_definition()
        if definition is None or definition.type.spelling == "" or str(definition.location.file) != self.path_of(declared):
            return None
        if definition.hash not in self.known:
            self.known[definition.hash] = None  # a function that calls itself
            self.known[definition.hash] = self.of_definition(definition)
        return self.known[definition.hash]

    def path_of(self, declared) -> str:
        return str(declared.translation_unit.spelling)

    def of_definition(self, definition) -> bool | None:
        children = list(definition.get_children())
        if definition.kind == Kind.VAR_DECL:
            is_constant = definition.type.is_const_qualified() and children and children[-1].kind.is_expression()
            return self.value_of(children[-1]) if is_constant else None
        body = [child for child in children if child.kind == Kind.COMPOUND_STMT]
        statements = list(body[-1].get_children()) if body else []
        if len(statements) != 1 or statements[0].kind != Kind.RETURN_STMT:
            return None
        returned = list(statements[0].get_children())
        return self.value_of(returned[0]) if returned else None

    # ---- stretches

    def leave_out(self, begin: int, end: int) -> None:
        self.stretches.append((begin, end))

    def leaves(self, statement) -> bool:
        return LEAVES.match(self.text, span(statement)[0]) is not None

    def unused(self, functions: list) -> list[tuple[int, int]]:
        """Of the definitions of this source: those that no other source sees, and whose every use lies where only a defect leads."""
        if not self.stretches:
            return []
        local = {one.hash: one for one in functions if one.linkage in (LinkageKind.INTERNAL, LinkageKind.UNIQUE_EXTERNAL)}
        uses: dict[int, list[int]] = {}
        for function in functions:
            self.collect(function, local, uses)
        left_out = list(self.stretches)
        found: list[tuple[int, int]] = []
        while True:
            more = [span(local[name]) for name, at in uses.items()
                    if span(local[name]) not in found and all(any(a <= one < b for a, b in left_out) for one in at)]  # fmt: skip
            if not more:
                return found
            found += more
            left_out += more

    def collect(self, cursor, local: dict, uses: dict[int, list[int]]) -> None:
        for child in cursor.walk_preorder():
            if child.kind in (Kind.DECL_REF_EXPR, Kind.OVERLOADED_DECL_REF) and child.referenced is not None:
                definition = child.referenced.get_definition()
                if definition is not None and definition.hash in local:
                    uses.setdefault(definition.hash, []).append(span(child)[0])
