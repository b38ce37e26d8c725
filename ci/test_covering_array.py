"""The rows of scenarios/pairs are those of the generator, and hold every pair of values that no rule excludes."""

import itertools
import re
import shutil

import covering_array
import pytest


def rows_in(text: str) -> list[dict[str, str]]:
    found = []
    for line in re.findall(r"^    r\d+: \{(.*)\}$", text, re.M):
        found.append(dict(item.split(": ") for item in line.split(", ")))
    return found


def read(name: str) -> str:
    with open(f"{covering_array.FOLDER}/{name}.yaml", encoding="utf-8") as file:
        return file.read()


def test_committed_rows_are_the_generated_ones():
    assert covering_array.main(["--check"]) == 0


def test_another_row_is_noticed(tmp_path, monkeypatch):
    for name in covering_array.FACTORS:
        shutil.copy(f"{covering_array.FOLDER}/{name}.yaml", tmp_path)
    path, before = tmp_path / "replicate.yaml", read("replicate")
    path.write_text(path.read_text().replace("views: true", "views: false", 1))
    monkeypatch.setattr(covering_array, "FOLDER", str(tmp_path))
    assert covering_array.main(["--check"]) == 1
    assert covering_array.main([]) == 0
    assert path.read_text() == before


@pytest.mark.parametrize("name", covering_array.FACTORS)
def test_every_pair_occurs_or_is_excluded(name):
    rows = rows_in(read(name))
    missing = []
    for (a, values_a), (b, values_b) in itertools.combinations(covering_array.FACTORS[name].items(), 2):
        for x, y in itertools.product(values_a, values_b):
            if not covering_array.allowed({a: x, b: y}, name):
                continue
            wanted = {a: covering_array.text_of(x), b: covering_array.text_of(y)}
            if not any(wanted.items() <= row.items() for row in rows):
                missing.append(wanted)
    assert rows and not missing


@pytest.mark.parametrize("name", covering_array.FACTORS)
def test_no_row_is_excluded(name):
    texts = {factor: {covering_array.text_of(v): v for v in values} for factor, values in covering_array.FACTORS[name].items()}
    for row in rows_in(read(name)):
        assert covering_array.allowed({factor: texts[factor][value] for factor, value in row.items()}, name), row
