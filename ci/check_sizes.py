#!/usr/bin/env python3
"""Finds raw products of sizes in the C++ sources: a product that wraps around allocates too little memory.

    check_sizes.py [ROOT]

Prints `file:line: the product; remedy` for each, and exits with 1 when there is one. A factor counts as a size when it is
a call such as num_elements(), size_of() or sizeof, an entry of sizes or strides, or a variable with a name such as
num_bytes; outside engine/kernels, whose loops stay within checked sizes, names such as rows and width count too. In `x *= y`, y
counts also when its name is size. The remedy is a function of engine/core/checked.hpp:

    checked_multiply(a, b, "operation")    sizes of a user or of a file
    bounded_product(a, b)                  sizes of memory that exists
    bounded_bytes<T>(count)                bytes of that memory
    element_offset(index, stride)          in a kernel, where the index is below the size that belongs to the stride

Not checked: checked.hpp itself, tests, benchmarks, products of floating-point numbers (a factor that begins with a cast
to double or float), a literal times sizeof, which the compiler evaluates, and `x / y * y`, which rounds.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from includes import source_files  # noqa: E402

# clang-format puts spaces around the operator, and none between a pointer's star and its name.
OPERATOR = re.compile(r"(?<=[\w)\]}])\s+(\*=?)\s+(?=[\w(])")
UNSEEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|(?m:^[ \t]*#(?:[^\n\\]|\\.)*)",
    re.DOTALL,
)
SIZE_CALL = re.compile(
    r"\b(num_elements|numel|num_bytes|size_of|sizeof|bytes_of|total_length|chunk_length|out_height|out_width|"
    r"padded_part_elements|element_size)\s*\("
)
SIZE_ENTRY = re.compile(r"(\b|_)(sizes|strides|shape|part|padded|joined)(\(\))?(\[[^\[\]]*\])+$")
SIZE_OF_DIM = re.compile(r"(\.|->)size\([^()]+\)$")
SIZE_NAME = re.compile(r"(^|\.|->|::)(num_)?(\w+_)?(bytes|numel|elements|stride|element_size|size_bytes)_?(\(\))?$")
SIZE_NAME_OUTSIDE_KERNELS = re.compile(
    r"(^|\.|->|::)(num_)?(\w+_)?(dim|inner|outer|height|width|channels|rows|columns)_?(\(\))?$"
)
FLOATING = re.compile(r"^(static_cast<(double|float|C|T|ComputeType<T>)>|double|float)\s*\(")
LITERAL = re.compile(r"^(\d[\d']*|std::\w+\{\d+\})$")
CLOSING = {")": "(", "]": "[", "}": "{", ">": "<"}


def blanked(text: str) -> str:
    """The text with comments, literals of text and preprocessor lines replaced by spaces, line by line."""
    return UNSEEN.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def operand_before(text: str, end: int) -> str:
    """The factor that ends at `end`: names, members, calls and entries."""
    at = end
    while at > 0:
        letter = text[at - 1]
        if letter in ")]}" or (letter == ">" and at < end and text[at] == "("):
            depth, opening = 0, CLOSING[letter]
            while at > 0:
                at -= 1
                depth += (text[at] == letter) - (text[at] == opening)
                if depth == 0:
                    break
        elif letter.isalnum() or letter in "_.'":
            at -= 1
        elif text[max(at - 2, 0) : at] in ("->", "::"):
            at -= 2
        else:
            break
    return text[at:end].strip()


def operand_after(text: str, begin: int) -> str:
    at = begin
    while at < len(text):
        letter = text[at]
        if letter in "([{" or (letter == "<" and text[begin:at].endswith("_cast")):
            closing = {"(": ")", "[": "]", "{": "}", "<": ">"}[letter]
            depth = 0
            while at < len(text):
                depth += (text[at] == letter) - (text[at] == closing)
                at += 1
                if depth == 0:
                    break
        elif letter.isalnum() or letter in "_.'":
            at += 1
        elif text[at : at + 2] in ("->", "::"):
            at += 2
        else:
            break
    return text[begin:at].strip()


def is_size(operand: str, in_kernel: bool) -> bool:
    if FLOATING.match(operand):
        return False
    cast = re.match(r"^static_cast<[^()]*>\((.*)\)$", operand, re.DOTALL)
    if cast:
        return is_size(cast.group(1).strip(), in_kernel)
    if operand.startswith("(") and operand.endswith(")"):
        inside = operand[1:-1].strip()
        return any(is_size(piece.strip(), in_kernel) for piece in re.split(r" [-+*/%] ", inside))
    call = SIZE_CALL.search(operand)
    if call and operand.endswith(")") and call.start() >= 0 and not re.match(r"^\w+\(.*,", operand):
        return True
    if not in_kernel and SIZE_NAME_OUTSIDE_KERNELS.search(operand):
        return True
    return bool(SIZE_ENTRY.search(operand) or SIZE_OF_DIM.search(operand) or SIZE_NAME.search(operand))


def problems_in(path: str, source: str) -> list[str]:
    text = blanked(source)
    in_kernel = path.startswith("engine/kernels/")
    found = []
    for match in OPERATOR.finditer(text):
        left, right = operand_before(text, match.start()), operand_after(text, match.end())
        sign = match.group(1)
        if FLOATING.match(left) or FLOATING.match(right) or re.search(r"\b(double|float)\s+\w+$", left):
            continue
        rounded = text[: match.start() - len(left)].rstrip().endswith("/") and left == right
        literal = any(LITERAL.match(a) and b.startswith("sizeof") for a, b in ((left, right), (right, left)))
        assigned = sign == "*=" and right in ("size", "count", "length")
        sized = assigned or is_size(right, in_kernel) or (sign == "*" and is_size(left, in_kernel))
        if sized and not literal and not rounded:
            line = text.count("\n", 0, match.start()) + 1
            found.append(
                f"{path}:{line}: `{left} {sign} {right}` may wrap around; use checked_multiply, bounded_product, "
                "bounded_bytes or, in a kernel, element_offset (engine/core/checked.hpp)"
            )
    return found


def is_looked_at(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    measures = re.search(r"_test\.cpp$|_bench\.cpp$|^bench|^test_|testing|test_support|simulated_ranks", name)
    return path != "engine/core/checked.hpp" and not measures


def check(root: Path) -> list[str]:
    problems = []
    for file in source_files(root):
        path = file.relative_to(root).as_posix()
        if is_looked_at(path):
            problems += problems_in(path, file.read_text(encoding="utf-8", errors="replace"))
    return problems


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else Path(__file__).resolve().parent.parent).resolve()
    problems = check(root)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
