"""Finds the mutation points of a C++ source in its syntax tree (libclang of Debian, python3-clang-14).

    points = find_points(path, arguments)      # arguments: those of the compiler (includes, definitions, standard)

A point is a stretch of the source with one or more alternatives. Each alternative is one mutant. The operators:

    negate       the condition of an if or of ?: is negated
    drop         an if without its condition; one operand of && or || alone
    compare      a comparison shifted by one: < and <=, > and >=; == and != are exchanged
    swap         the operands of - / % exchanged; two neighbouring arguments of one type exchanged
    arithmetic   + and - exchanged
    constant     an integer or a number plus one, 1 becomes 0, true and false exchanged
    omit         a call, wait, assignment, throw or jump left out (omit_call, omit_wait, omit_assign, ...)
    reverse      a range-based loop runs from the last element to the first
    copy         a local reference that is written through refers to a copy

Excluded: functions that a compiler may evaluate (constexpr), functions that return text, operands of throw and arguments of
str() and Error(), macros, code that is not in a function, and seeded defects: the question whether one is armed, and the
code that runs only if one is (defects.py). Functions by which tests put a stand-in in place are excluded too.

An alternative has a probe where an expression without effects tells whether it makes a difference (probes.py).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from clang.cindex import CursorKind as Kind
from clang.cindex import Index, TranslationUnit, TypeKind

from defects import Defects, span
from probes import NUMBERS, PLAIN, PROBED, Probes

FUNCTIONS = {
    Kind.FUNCTION_DECL,
    Kind.CXX_METHOD,
    Kind.CONSTRUCTOR,
    Kind.DESTRUCTOR,
    Kind.FUNCTION_TEMPLATE,
    Kind.CONVERSION_FUNCTION,
}
SHIFTED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
ARITHMETIC = {"+": "-", "-": "+"}
ORDERED = {"-", "/", "%"}
COMMUTATIVE_CALLS = {"min", "max", "swap", "any_sharded", "str", "gcd", "lcm", "add", "multiply", "eq", "ne", "promote", "element_offset", "checked_add",
                     "checked_multiply", "bounded_product"}  # fmt: skip
TEXT_CALLS = {"str", "Error", "InternalError", "CollectiveError", "UnsupportedError", "ResourceError", "fail_check"}
TEXT_TYPES = re.compile(r"^(const )?(std::(__cxx11::)?)?(basic_)?string(_view)?\b|^const char \*")
FOR_TESTS = {"replace_calls", "restore_calls", "replace_reduce_on_device"}  # they put a test's stand-in in place
FASTER_ONLY = {"reserve", "shrink_to_fit"}  # nothing but time and memory depends on them
WAITS = re.compile(r"wait|synchroni[sz]e|record_event|depend", re.IGNORECASE)


@dataclass
class Alternative:
    operator: str
    text: str  # the mutated text of the stretch, for the diff; what is compiled where the form is "value" or "condition"
    probe: str = ""  # an expression: does the mutant make a difference now? Empty: always


@dataclass
class Point:
    """One stretch. `form` says how the switch stands there; see rewrite.py."""

    begin: int
    end: int
    form: str  # value, condition, statement, arguments, range, alias
    function: str
    function_begin: int
    line: int
    alternatives: list[Alternative] = field(default_factory=list)
    parts: list[int] = field(default_factory=list)  # arguments: begin and end of both

    def to_json(self) -> dict:
        return asdict(self)

    @staticmethod
    def from_json(data: dict) -> "Point":
        point = Point(**data)
        point.alternatives = [Alternative(**one) for one in data["alternatives"]]
        return point


class Finder:
    """Walks the functions of one translation unit's main file."""

    def __init__(self, path: str, text: str, unit: TranslationUnit):
        self.path, self.text, self.defects, self.probes = path, text, Defects(text), Probes(text)
        self.points: dict[tuple[int, int, str], Point] = {}
        self.macros: list[tuple[int, int]] = []
        self.function, self.function_begin = "", 0
        self.functions: list = []
        self.compared: dict[tuple[int, int], str] = {}  # a number that is compared: the comparison, with a zero byte in its place
        for cursor in unit.cursor.get_children():
            if cursor.location.file is None or cursor.location.file.name != path:
                continue
            if cursor.kind == Kind.MACRO_INSTANTIATION:
                self.macros.append(span(cursor))
        for cursor in unit.cursor.get_children():
            if cursor.location.file is not None and cursor.location.file.name == path:
                self.declarations(cursor)
        for begin, end in self.defects.unused(self.functions):
            self.points = {key: point for key, point in self.points.items() if not begin <= key[0] < end}

    # ---- which functions

    def declarations(self, cursor) -> None:
        if cursor.kind in FUNCTIONS:
            self.function_of(cursor)
        elif cursor.kind in (Kind.NAMESPACE, Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE,
                             Kind.CLASS_TEMPLATE_PARTIAL_SPECIALIZATION, Kind.LINKAGE_SPEC, Kind.UNEXPOSED_DECL):  # fmt: skip
            for child in cursor.get_children():
                self.declarations(child)

    def function_of(self, cursor) -> None:
        bodies = [child for child in cursor.get_children() if child.kind == Kind.COMPOUND_STMT]
        if not bodies or cursor.spelling in FOR_TESTS:
            return
        self.functions.append(cursor)
        begin, _ = span(cursor)
        head = self.text[begin : span(bodies[-1])[0]]
        if re.search(r"\b(constexpr|consteval)\b", head):
            return
        if TEXT_TYPES.match(cursor.result_type.spelling):
            return
        names, parent = [cursor.spelling], cursor.semantic_parent
        while parent is not None and parent.kind in (Kind.CLASS_DECL, Kind.STRUCT_DECL, Kind.CLASS_TEMPLATE):
            names.append(parent.spelling)
            parent = parent.semantic_parent
        self.function, self.function_begin = "::".join(reversed(names)), begin
        for child in cursor.get_children():
            if child.kind == Kind.COMPOUND_STMT:
                self.statement(child)
            elif cursor.kind == Kind.CONSTRUCTOR and child.kind.is_expression() and span(child)[0] > begin:
                self.walk(child)

    # ---- statements

    def statement(self, cursor) -> None:
        """A statement in the place of a statement: of a block, a branch or a loop."""
        if cursor.kind == Kind.COMPOUND_STMT:
            return self.block(list(cursor.get_children()))
        if self.sets_text(cursor):
            return
        operator = self.omission_of(cursor)
        if operator:
            begin, end = span(cursor)
            semicolon = re.compile(r"\s*;").match(self.text, end)
            if semicolon:
                self.add(begin, semicolon.end(), "statement", operator, "", probe=self.probes.of_assignment(self.unwrapped(cursor)))
        self.walk(cursor)

    def block(self, statements: list) -> None:
        for i, one in enumerate(statements):
            self.statement(one)
            if one.kind == Kind.IF_STMT and self.always_leaves(one):  # the rest of the block runs under a defect only
                for rest in statements[i + 1 :]:
                    self.defects.leave_out(*span(rest))
                return

    def always_leaves(self, cursor) -> bool:
        """An if whose condition holds unless a defect is armed, and whose branch does not go on behind it."""
        parts = self.parts_of_if(cursor)
        return parts is not None and self.defects.value_of(parts[1]) is True and self.defects.leaves(parts[2][0])

    def omission_of(self, cursor) -> str | None:
        kind = cursor.kind
        if kind == Kind.RETURN_STMT:
            return None if list(cursor.get_children()) else "omit_jump"
        if kind in (Kind.CONTINUE_STMT, Kind.BREAK_STMT):
            return "omit_jump"
        text = self.text[slice(*span(cursor))]
        if kind == Kind.CXX_THROW_EXPR or text.startswith("throw "):
            return "omit_throw"
        if not kind.is_expression():
            return None
        inner = self.unwrapped(cursor)
        if inner.kind == Kind.BINARY_OPERATOR or inner.kind == Kind.COMPOUND_ASSIGNMENT_OPERATOR:
            return "omit_assign"
        if inner.kind == Kind.UNARY_OPERATOR:
            return "omit_assign"
        if inner.kind == Kind.CALL_EXPR:
            if inner.spelling in FASTER_ONLY:
                return None
            if inner.spelling.startswith("operator"):
                return "omit_assign"
            return "omit_wait" if WAITS.search(inner.spelling) else "omit_call"
        if inner.kind == Kind.CXX_DELETE_EXPR:
            return None
        return "omit_call" if text.endswith(")") else None

    def sets_text(self, cursor) -> bool:
        """An assignment to a text, or an addition to it."""
        return cursor.kind.is_expression() and "basic_string" in cursor.type.get_canonical().spelling

    def unwrapped(self, cursor):
        while cursor.kind == Kind.UNEXPOSED_EXPR:
            children = list(cursor.get_children())
            if len(children) != 1 or span(children[0]) != span(cursor):
                break
            cursor = children[0]
        return cursor

    # ---- everything else

    def walk(self, cursor) -> None:
        kind = cursor.kind
        if self.defects.value_of(cursor) is not None:
            return None
        if kind == Kind.IF_STMT:
            return self.if_statement(cursor)
        if kind in (Kind.WHILE_STMT, Kind.FOR_STMT, Kind.DO_STMT):
            return self.loop(cursor)
        if kind == Kind.CXX_FOR_RANGE_STMT:
            return self.range_loop(cursor)
        if kind in (Kind.CASE_STMT, Kind.DEFAULT_STMT):
            children = list(cursor.get_children())
            return self.statement(children[-1]) if children else None
        if kind == Kind.COMPOUND_STMT:
            return self.statement(cursor)
        if kind == Kind.LAMBDA_EXPR:
            for child in cursor.get_children():
                if child.kind == Kind.COMPOUND_STMT:
                    self.statement(child)
            return None
        if kind == Kind.CXX_THROW_EXPR or self.makes_text(cursor):
            return None
        if kind in (Kind.STATIC_ASSERT, Kind.TYPE_ALIAS_DECL, Kind.USING_DECLARATION, Kind.CXX_UNARY_EXPR):
            return None
        if kind in (Kind.CLASS_DECL, Kind.STRUCT_DECL):
            function, begin = self.function, self.function_begin
            self.declarations(cursor)
            self.function, self.function_begin = function, begin
            return None
        if kind == Kind.VAR_DECL:
            return self.variable(cursor)
        self.alternatives_of(cursor)
        for child in self.taken(cursor):
            if not self.is_bound(child):
                self.walk(child)
        return None

    def taken(self, cursor) -> list:
        """The children, without the branch of ?: that is taken only if a defect is armed."""
        children = list(cursor.get_children())
        value = self.defects.value_of(children[0]) if cursor.kind == Kind.CONDITIONAL_OPERATOR else None
        if value is None:
            return children
        self.defects.leave_out(*span(children[2 if value else 1]))
        return [children[1 if value else 2]]

    def is_bound(self, child) -> bool:
        """Sizes of arrays and arguments of templates, which are constants."""
        begin, end = span(child)
        before = self.text[:begin].rstrip()[-1:]
        return child.kind == Kind.INTEGER_LITERAL and before in ("<", ",") and self.text[end : end + 1] == ">"

    def makes_text(self, cursor) -> bool:
        return cursor.kind == Kind.CALL_EXPR and cursor.spelling in TEXT_CALLS

    def variable(self, cursor) -> None:
        begin, _ = span(cursor)
        name_at = cursor.location.offset
        if re.search(r"\bconstexpr\b", self.text[begin:name_at]):
            return
        after = [child for child in cursor.get_children() if child.kind.is_expression() and span(child)[0] >= name_at]
        after = [child for child in after if self.text[: span(child)[0]].rstrip()[-1:] != "["]
        if cursor.type.kind == TypeKind.LVALUEREFERENCE and not cursor.type.get_pointee().is_const_qualified() and after:
            value = after[-1]
            if self.text[: span(value)[0]].rstrip().endswith("="):
                self.add(*span(value), "alias", "copy", f"copied({self.text[slice(*span(value))]})")
        for child in after:
            self.walk(child)

    def parts_of_if(self, cursor) -> tuple[list, object, list] | None:
        """Declarations, the condition, and one or two branches."""
        children = list(cursor.get_children())
        at = next(
            (i for i in range(len(children) - 1)
             if re.match(r"\s*\)", self.text[span(children[i])[1] : span(children[i + 1])[0]])),
            None,
        )  # fmt: skip
        return None if at is None else (children[:at], children[at], children[at + 1 :])

    def if_statement(self, cursor) -> None:
        parts = self.parts_of_if(cursor)
        if parts is None:
            return
        declared, condition, then = parts
        begin, _ = span(cursor)
        head = self.text[begin : span(condition)[0]]
        for child in declared:
            self.walk(child)
        value = self.defects.value_of(condition)
        if value is not None:
            for branch in then:
                if (branch == then[0]) == value:
                    self.statement(branch)
                else:
                    self.defects.leave_out(*span(branch))
            return
        declared_until = span(declared[-1])[1] if declared else begin
        if "constexpr" not in head and condition.kind.is_expression() and span(condition)[0] >= declared_until:
            self.condition(condition, then[0], len(then) > 1)
            self.walk(condition)
        for branch in then:
            self.statement(branch)

    def condition(self, cursor, then, has_else: bool) -> None:
        begin, end = span(cursor)
        source = self.text[begin:end]
        if self.sign_of(cursor) not in ("==", "!="):  # there `compare` is the same
            self.add(begin, end, "condition", "negate", f"!({source})")
        leaves = self.text[slice(*span(then))].lstrip("{ \n")
        if not has_else and not re.match(r"throw\b|return\b|continue\b|break\b", leaves):
            self.add(begin, end, "condition", "drop", "true", probe=f"!({source})" if self.probes.is_repeatable(cursor) else "")

    def loop(self, cursor) -> None:
        children = list(cursor.get_children())
        body = children[0] if cursor.kind == Kind.DO_STMT else children[-1]
        for child in children:
            if child == body:
                self.statement(child)
            else:
                self.walk(child)

    def range_loop(self, cursor) -> None:
        children = list(cursor.get_children())
        for child in children[:-1]:
            if child.kind.is_expression():
                begin, end = span(child)
                if self.text[:begin].rstrip().endswith(":") and self.text[begin] != "{":
                    self.add(begin, end, "range", "reverse", f"reversed({self.text[begin:end]})")
                    self.walk(child)
        self.statement(children[-1])

    def alternatives_of(self, cursor) -> None:
        kind = cursor.kind
        if kind == Kind.BINARY_OPERATOR:
            self.binary(cursor, list(cursor.get_children()))
        elif kind == Kind.CONDITIONAL_OPERATOR:
            first = next(iter(cursor.get_children()), None)
            if first is not None and self.defects.value_of(first) is None:
                self.add(*span(first), "condition", "negate", f"!({self.text[slice(*span(first))]})")
        elif kind == Kind.CALL_EXPR:
            if cursor.spelling.startswith("operator"):
                self.overloaded(cursor)
            else:
                self.arguments(cursor)
        elif kind == Kind.INTEGER_LITERAL:
            self.integer(cursor)
        elif kind == Kind.FLOATING_LITERAL:
            begin, end = span(cursor)
            self.add(begin, end, "value", "constant", f"{self.text[begin:end]} + 1")
        elif kind == Kind.CXX_BOOL_LITERAL_EXPR:
            begin, end = span(cursor)
            source = self.text[begin:end]
            if source in ("true", "false"):
                self.add(begin, end, "value", "constant", "false" if source == "true" else "true")

    def integer(self, cursor) -> None:
        begin, end = span(cursor)
        source = self.text[begin:end]
        if not re.fullmatch(r"[\d']+[uUlL]*", source) or self.text[:begin].rstrip().endswith("virtual ="):
            return
        changed, comparison = "0" if source == "1" else f"{source} + 1", self.compared.get((begin, end), "")
        probe = f"({comparison.replace(chr(0), source)}) != ({comparison.replace(chr(0), f'({changed})')})" if comparison else ""
        self.add(begin, end, "value", "constant", changed, probe=probe)

    def overloaded(self, cursor) -> None:
        name = cursor.spelling[len("operator") :]
        children = sorted(cursor.get_children(), key=span)
        if name in SHIFTED and len(children) == 3:
            self.binary(cursor, [children[0], children[2]], compare_only=True)

    def sign_of(self, cursor) -> str:
        """The operator of a comparison or another expression with two operands, else nothing."""
        cursor = self.unwrapped(cursor)
        children = sorted(cursor.get_children(), key=span)
        if cursor.kind == Kind.CALL_EXPR and cursor.spelling.startswith("operator"):
            return cursor.spelling[len("operator") :]
        if cursor.kind != Kind.BINARY_OPERATOR or len(children) != 2:
            return ""
        return self.text[span(children[0])[1] : span(children[1])[0]].strip()

    def binary(self, cursor, children, compare_only: bool = False) -> None:
        if len(children) != 2:
            return
        (begin, left_end), (right_begin, end) = span(children[0]), span(children[1])
        if left_end > right_begin or (begin, end) != span(cursor):
            return
        between = self.text[left_end:right_begin]
        sign = between.strip()
        left, right = self.text[begin:left_end], self.text[right_begin:end]
        exchange = between.replace(sign, "{}", 1) if sign else between
        repeatable = not compare_only and all(self.probes.is_repeatable(one) for one in children)
        if sign in SHIFTED:
            if repeatable:
                self.compared[span(children[0])] = f"\0 {sign} ({right})"
                self.compared[span(children[1])] = f"({left}) {sign} \0"
            shifts = repeatable and sign not in ("==", "!=") and children[0].type.get_canonical().kind in PROBED
            self.add(begin, end, "value", "compare", left + exchange.format(SHIFTED[sign]) + right,
                     probe=f"({left}) == ({right})" if shifts else "")  # fmt: skip
        elif sign in ("&&", "||") and not compare_only:
            if any(self.defects.value_of(one) is not None for one in children):
                return
            decides = f"!({left})" if sign == "&&" else f"({left})"  # the left operand alone decides
            opposite = f"!({right})" if sign == "&&" else f"({right})"
            undecided = f"({left})" if sign == "&&" else f"!({left})"
            turned = f"({right})" if sign == "&&" else f"!({right})"
            safe = repeatable and self.probes.is_repeatable(children[1], PLAIN)
            self.add(begin, end, "condition", "drop", left, probe=f"{undecided} && {opposite}" if repeatable else "")
            self.add(begin, end, "condition", "drop", right, probe=f"{decides} && {turned}" if safe else decides if repeatable else "")
        elif compare_only or cursor.type.get_canonical().kind not in NUMBERS:
            return
        elif sign in ARITHMETIC:
            self.add(begin, end, "value", "arithmetic", left + exchange.format(ARITHMETIC[sign]) + right,
                     probe=f"({right}) != 0" if repeatable else "")  # fmt: skip
        if sign in ORDERED and not compare_only and left != right:
            self.add(begin, end, "value", "swap", f"({right}){between}({left})", probe=f"({left}) != ({right})" if repeatable else "")

    def arguments(self, cursor) -> None:
        if cursor.spelling in COMMUTATIVE_CALLS:
            return
        given = [one for one in cursor.get_arguments() if one is not None]
        at = 0
        while at + 1 < len(given):
            first, second = given[at], given[at + 1]
            (begin, first_end), (second_begin, end) = span(first), span(second)
            types = [one.type.get_canonical().spelling.removeprefix("const ") for one in (first, second)]
            a, b = self.text[begin:first_end], self.text[second_begin:end]
            # A choice between two arguments is no longer a value to move from, and may choose another overload.
            simple = not {a[:1], b[:1]} & {"{", "[", ""} and "std::move(" not in a + b
            if types[0] == types[1] and a != b and simple and re.fullmatch(r"\s*,\s*", self.text[first_end:second_begin]):
                repeatable = first.type.get_canonical().kind in PROBED and self.probes.is_repeatable(first) and self.probes.is_repeatable(second)
                self.add(begin, end, "arguments", "swap", b + self.text[first_end:second_begin] + a,
                         [begin, first_end, second_begin, end], f"({a}) != ({b})" if repeatable else "")  # fmt: skip
                at += 2
            else:
                at += 1

    # ---- the table

    def add(self, begin: int, end: int, form: str, operator: str, text: str, parts: list[int] | None = None, probe: str = "") -> None:
        if end <= begin or any(first < end and begin < last for first, last in self.macros):
            return
        key = (begin, end, form)
        if key not in self.points:
            line = self.text.count("\n", 0, begin) + 1
            self.points[key] = Point(begin, end, form, self.function, self.function_begin, line, parts=parts or [])
        known = self.points[key].alternatives
        if all(one.text != text for one in known):
            known.append(Alternative(operator, text, probe))


def find_points(path: str, arguments: list[str]) -> list[Point]:
    """The points of the source, in the order of their places. Raises ValueError if clang cannot read the source."""
    unit = Index.create().parse(path, args=arguments, options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD)
    fatal = [str(one) for one in unit.diagnostics if one.severity >= 4]
    if fatal:
        raise ValueError(f"{path}: clang cannot read it: {fatal[0]}")
    text = Path(path).read_bytes().decode("latin-1")
    return sorted(Finder(path, text, unit).points.values(), key=lambda point: (point.begin, -point.end, point.form))


def parser_arguments(command: list[str]) -> list[str]:
    """The part of a compiler's command line that changes what is parsed."""
    kept: list[str] = []
    words = iter(command[1:])
    for word in words:
        if word in ("-isystem", "-I", "-D"):
            kept += [word, next(words)]
        elif word.startswith(("-I", "-D", "-std=", "-isystem")):
            kept.append(word)
    return [*kept, "-w"]
