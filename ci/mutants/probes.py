"""Probes: expressions that tell, where a mutant stands, whether it makes a difference there.

    probes = Probes(text)       # of the source
    probes.is_repeatable(cursor)        # may the expression be evaluated once more?
    probes.of_assignment(cursor)        # whether leaving out the assignment makes a difference: "(a) != (b)"

`a < b` differs from `a <= b` where `a == b`. A mutant without a probe makes a difference wherever it is reached.
"""

from __future__ import annotations

import re

from clang.cindex import CursorKind as Kind
from clang.cindex import TypeKind

from defects import span

NUMBERS = {
    TypeKind.CHAR_S, TypeKind.SHORT, TypeKind.USHORT, TypeKind.INT, TypeKind.UINT, TypeKind.LONG, TypeKind.ULONG,
    TypeKind.LONGLONG, TypeKind.ULONGLONG, TypeKind.FLOAT, TypeKind.DOUBLE, TypeKind.UCHAR, TypeKind.SCHAR,
}  # fmt: skip
PROBED = NUMBERS | {TypeKind.BOOL, TypeKind.ENUM, TypeKind.POINTER}
# Expressions that may be evaluated twice, and of these, those that may be evaluated where the source would not.
PLAIN = {Kind.DECL_REF_EXPR, Kind.INTEGER_LITERAL, Kind.FLOATING_LITERAL, Kind.CXX_BOOL_LITERAL_EXPR, Kind.CXX_NULL_PTR_LITERAL_EXPR,
         Kind.CHARACTER_LITERAL, Kind.CXX_THIS_EXPR, Kind.UNEXPOSED_EXPR, Kind.PAREN_EXPR, Kind.BINARY_OPERATOR, Kind.UNARY_OPERATOR,
         Kind.CXX_STATIC_CAST_EXPR, Kind.NAMESPACE_REF, Kind.TYPE_REF, Kind.TEMPLATE_REF}  # fmt: skip
REPEATABLE = PLAIN | {Kind.MEMBER_REF_EXPR, Kind.ARRAY_SUBSCRIPT_EXPR, Kind.CONDITIONAL_OPERATOR, Kind.MEMBER_REF}
REPEATABLE_CALLS = re.compile(r"^(operator(\[\]|==|!=|<|>|<=|>=|\*|->)|min|max|abs|size|ssize|(is|has|num)_\w+)$")
EFFECTS = re.compile(r"(?<![=!<>+\-*/%&|^])=(?!=)|\+\+|--|[-+*/%&|^]=|<<=|>>=")  # within a text: an assignment


class Probes:
    def __init__(self, text: str):
        self.text = text

    def is_repeatable(self, cursor, kinds=REPEATABLE) -> bool:
        """Evaluating it twice has no effect; with PLAIN, it may also be evaluated where the source would not."""
        if EFFECTS.search(self.text[slice(*span(cursor))]):
            return False
        if cursor.kind == Kind.CALL_EXPR and kinds is REPEATABLE:
            called = cursor.referenced
            is_method = called is not None and called.kind == Kind.CXX_METHOD and not called.is_static_method()
            # Of the methods that are not const, only operators that give an element have no effect.
            may_have_effect = is_method and not cursor.spelling.startswith("operator")
            if not (is_method and called.is_const_method()) and (may_have_effect or not REPEATABLE_CALLS.match(cursor.spelling)):
                return False
        elif cursor.kind not in kinds or (kinds is PLAIN and re.match(r"\*", self.text[span(cursor)[0] :])):
            return False
        if kinds is PLAIN and cursor.kind == Kind.BINARY_OPERATOR and re.search(r"[/%]", self.text[slice(*span(cursor))]):
            return False
        return all(self.is_repeatable(child, kinds) for child in cursor.get_children())

    def of_assignment(self, cursor) -> str:
        children = list(cursor.get_children())
        if len(children) != 2 or children[0].type.get_canonical().kind not in PROBED:
            return ""
        if not all(self.is_repeatable(one) for one in children):
            return ""
        (begin, left_end), (right_begin, end) = span(children[0]), span(children[1])
        left, right = self.text[begin:left_end], self.text[right_begin:end]
        sign = self.text[left_end:right_begin].strip()
        if cursor.kind == Kind.BINARY_OPERATOR and sign == "=":
            return f"({left}) != ({right})"
        return f"({right}) != 0" if sign in ("+=", "-=", "|=") and children[0].type.get_canonical().kind in NUMBERS else ""
