#!/usr/bin/env python3
"""Writes the damaged files that scenarios/checkpoints_on_disk/unreadable_files reads.

    ci/damaged_safetensors.py            writes them into scenarios/checkpoints_on_disk/unreadable_files/
    ci/damaged_safetensors.py --check    exit code 1 where a file differs
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "scenarios/checkpoints_on_disk/unreadable_files"


def entry(begin: int, end: int, shape: list | None = None, dtype: object = "F32") -> dict:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def file_of(header: object, data_bytes: int, value: int = 0) -> bytes:
    text = header if isinstance(header, str) else json.dumps(header)
    return struct.pack("<Q", len(text)) + text.encode() + bytes([value]) * data_bytes


def without(key: str) -> dict:
    whole = entry(0, 8)
    del whole[key]
    return {"w": whole}


FILES = {
    "empty": b"",
    "seven_bytes": bytes(7),
    "long_header": struct.pack("<Q", 100_000_001) + b"{}",
    "cut_header": struct.pack("<Q", 3) + b"{}",
    "no_json": file_of("{]", 0),
    "list": file_of([], 0),
    "deep": file_of({"w": {"shape": [[1]]}}, 0),
    "deep_map": file_of({"w": {"shape": [{}]}}, 0),
    "twice": file_of('{"w": %s, "w": %s}' % ((json.dumps(entry(0, 8)),) * 2), 8),
    "field_twice": file_of('{"w": {"dtype": "F32", "dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', 8),
    "metadata_list": file_of({"__metadata__": [], "w": entry(0, 8)}, 8),
    "metadata_number": file_of({"__metadata__": {"a": 1}, "w": entry(0, 8)}, 8),
    "no_map": file_of({"w": 3}, 0),
    "no_dtype": file_of(without("dtype"), 8),
    "no_shape": file_of(without("shape"), 8),
    "no_offsets": file_of(without("data_offsets"), 8),
    "unknown_type": file_of({"w": entry(0, 8, dtype="F33")}, 8),
    "number_as_type": file_of({"w": entry(0, 8, dtype=32)}, 8),
    "shape_no_list": file_of({"w": entry(0, 8, shape=2)}, 8),
    "negative_size": file_of({"w": entry(0, 8, shape=[-2])}, 8),
    "size_too_large": file_of({"w": entry(0, 8, shape=[2**63])}, 8),
    "nine_dims": file_of({"w": entry(0, 8, shape=[1] * 8 + [2])}, 8),
    "too_many_bytes": file_of({"w": entry(0, 8, shape=[2**62])}, 8),
    "three_offsets": file_of({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, 8),
    "offsets_reversed": file_of({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, 8),
    "other_length": file_of({"w": entry(0, 8, shape=[3])}, 8),
    "beyond_the_end": file_of({"w": entry(0, 8)}, 4),
    "overlap": file_of({"v": entry(0, 8), "w": entry(4, 12)}, 12),
    "overlap_out_of_order": file_of({"w": entry(4, 12), "v": entry(0, 8)}, 12),
    "hole": file_of({"v": entry(0, 4), "w": entry(8, 12)}, 12),
    "hole_at_the_end": file_of({"w": entry(0, 8)}, 12),
    "bool_of_two": file_of({"w": entry(0, 2, shape=[2], dtype="BOOL")}, 2, value=2),
}  # fmt: skip
# These are read: nothing is wrong with them.
READABLE = {
    "metadata": file_of({"__metadata__": {"a": "b"}, "w": entry(0, 8)}, 8),
    "eight_dims": file_of({"w": entry(0, 8, shape=[1] * 7 + [2])}, 8),
    "out_of_order": file_of({"w": entry(8, 16), "nothing": entry(8, 8), "v": entry(0, 8)}, 16),
    "same_fields": file_of({"v": entry(0, 8), "w": entry(8, 16)}, 16),
    "bools": file_of({"w": entry(0, 2, shape=[2], dtype="BOOL")}, 2, value=1),
    "nothing": file_of({}, 0),
}


def main() -> int:
    differing = 0
    FOLDER.mkdir(exist_ok=True)
    for name, content in {**FILES, **READABLE}.items():
        path = FOLDER / f"{name}.safetensors"
        if "--check" not in sys.argv[1:]:
            path.write_bytes(content)
        elif not path.is_file() or path.read_bytes() != content:
            print(f"{path} differs", file=sys.stderr)
            differing += 1
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
