"""The checks of this folder find the errors that they are made for."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parent
sys.path.insert(0, str(CI))
import bench_ratios  # noqa: E402
import check_headers  # noqa: E402
import check_layers  # noqa: E402
import check_sizes  # noqa: E402
import check_tidy  # noqa: E402
import check_vectors  # noqa: E402
from includes import includes_of  # noqa: E402


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def problems(tmp_path: Path, path: str, line: str) -> list[str]:
    write(tmp_path, path, f"// A file.\n{line}\n")
    return check_layers.check(tmp_path)


@pytest.mark.parametrize(
    "path, line, said",
    [
        ("engine/layout/chunk.cpp", '#include "engine/tensor/tensor.hpp"', "engine/layout lies below engine/tensor"),
        ("engine/state/a.cpp", '#include "harness/run/verbs/verbs.hpp"', "engine/state lies below harness/run"),
        ("harness/plan/plan.cpp", '#include "engine/comm/group.hpp"', "harness/plan may include"),
        ("harness/verdict/compare.cpp", '  #  include "engine/tensor/tensor.hpp"', "harness/verdict may include"),
        ("harness/scenario/parse.cpp", '#include "harness/verdict/results.hpp"', "lies below harness/verdict"),
        ("engine/tensor/tensor.hpp", '#include "tensor.hpp"', "write the path from the root"),
        ("engine/tensor/tensor.hpp", '#include "engine/magic/wand.hpp"', "is in no known layer"),
        ("engine/nn/linear.cpp", '#include "cblas.h"', "BLAS is used in engine/kernels only"),
        ("engine/nn/linear.cpp", "#include <Kokkos_Core.hpp>", "Kokkos is used in engine/kernels only"),
        ("engine/tensor/matmul.cpp", "#include <cblas.h>", "BLAS is used in engine/kernels only"),
        ("engine/kernels/add.hpp", "#include <Kokkos_Core.hpp>", "must not appear in a public header"),
        ("harness/report/json.hpp", "#include <nlohmann/json.hpp>", "must not appear in a public header"),
        ("harness/scenario/parse.hpp", "#include <yaml-cpp/yaml.h>", "must not appear in a public header"),
        ("harness/cli/options.hpp", "#include <CLI/CLI.hpp>", "must not appear in a public header"),
        ("engine/comm/mpi_transport.hpp", "#include <mpi.h>", "must not appear in a public header"),
        ("engine/mesh/mesh.cpp", "#include <nccl.h>", "NCCL is used in engine/comm only"),
        ("engine/nn/norm.cpp", '#include "engine/kernels/detail/reduce.hpp"', "is internal to engine/kernels"),
    ],
)
def test_a_wrong_include_is_found_with_its_line(tmp_path, path, line, said):
    found = problems(tmp_path, path, line)
    assert len(found) == 1
    assert found[0].startswith(f"{path}:2: ")
    assert said in found[0]


@pytest.mark.parametrize(
    "path, line",
    [
        ("engine/tensor/tensor.cpp", '#include "engine/kernels/add.hpp"'),
        ("engine/tensor/tensor.cpp", '#include "engine/tensor/storage.hpp"'),
        ("engine/kernels/add.cpp", "#include <Kokkos_Core.hpp>"),
        ("engine/tensor/tensor_test.cpp", '#include "gtest/gtest.h"'),
        ("engine/kernels/launch_internal.hpp", "#include <Kokkos_Core.hpp>"),
        ("harness/plan/plan.cpp", '#include "engine/layout/chunk.hpp"'),
        ("harness/report/json.cpp", "#include <nlohmann/json.hpp>"),
        ("harness/run/verbs/verbs.cpp", '#include "engine/parallel/fully_shard.hpp"'),
        ("engine/core/text.hpp", '// #include "harness/run/verbs/verbs.hpp"'),
        ("engine/core/text.hpp", '/*\n#include "harness/run/verbs/verbs.hpp"\n*/'),
    ],
)
def test_a_right_include_passes(tmp_path, path, line):
    assert problems(tmp_path, path, line) == []


def test_lines_are_counted_past_block_comments():
    found = includes_of('/* one\n two */\n#include "a/b.hpp"\n  # include <vector>\n')
    assert [(include.line, include.target, include.quoted) for include in found] == [
        (3, "a/b.hpp", True),
        (4, "vector", False),
    ]


def test_the_command_exits_with_one_and_prints_the_place(tmp_path):
    write(tmp_path, "engine/core/a.cpp", '#include "engine/nn/module.hpp"\n')
    result = subprocess.run(
        [sys.executable, str(CI / "check_layers.py"), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stdout.startswith("engine/core/a.cpp:1: ")


def test_every_layer_of_the_build_has_its_place():
    """check_layers.py and CMakeLists.txt list the layers in the same order."""
    cmake = (CI.parent / "CMakeLists.txt").read_text(encoding="utf-8")
    declared = [line.split("(")[1].split()[0].rstrip(")") for line in cmake.splitlines() if line.startswith("lockstep_layer(")]
    assert sorted(declared) == sorted(check_layers.ORDER)


def test_a_header_must_include_what_it_uses(tmp_path):
    write(tmp_path, "engine/core/good.hpp", "#pragma once\n#include <string>\ninline std::string f() { return {}; }\n")
    write(tmp_path, "engine/core/unguarded.hpp", "struct Twice {};\n")
    write(tmp_path, "engine/core/needy.hpp", "#pragma once\ninline std::vector<int> g() { return {}; }\n")
    failed = check_headers.check(tmp_path, tmp_path / "stamps", "g++")
    assert sorted(failed) == ["engine/core/needy.hpp", "engine/core/unguarded.hpp"]
    assert "redefinition" in failed["engine/core/unguarded.hpp"]


def test_every_header_is_compiled_even_when_its_source_includes_it_first(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(check_headers, "compile_twice", lambda compiler, root, path: compiled.append(path))
    write(tmp_path, "engine/core/first.hpp", "#pragma once\n")
    write(tmp_path, "engine/core/first.cpp", '#include "engine/core/first.hpp"\n')
    write(tmp_path, "engine/core/alone.hpp", "#pragma once\n")
    assert check_headers.check(tmp_path, tmp_path / "stamps", "g++") == {}
    assert sorted(compiled) == ["engine/core/alone.hpp", "engine/core/first.hpp"]


def test_a_checked_header_is_compiled_again_only_when_its_text_or_its_includes_change(tmp_path, monkeypatch):
    compiled = []

    def record(compiler, root, path):
        compiled.append(path)

    monkeypatch.setattr(check_headers, "compile_twice", record)
    write(tmp_path, "engine/core/low.hpp", "#pragma once\n")
    write(tmp_path, "engine/core/high.hpp", '#pragma once\n#include "engine/core/low.hpp"\n')

    def checked():
        compiled.clear()
        check_headers.check(tmp_path, tmp_path / "stamps", "g++")
        return sorted(compiled)

    assert checked() == ["engine/core/high.hpp", "engine/core/low.hpp"]
    assert checked() == []
    write(tmp_path, "engine/core/low.hpp", "#pragma once\nstruct Low {};\n")
    assert checked() == ["engine/core/high.hpp", "engine/core/low.hpp"]
    write(tmp_path, "engine/core/high.hpp", '#pragma once\n#include "engine/core/low.hpp"\nstruct High {};\n')
    assert checked() == ["engine/core/high.hpp"]


# ---- clang-tidy ----
def git(root: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    subprocess.run(["git", "-C", str(root), *identity, *arguments], check=True, capture_output=True)


def test_tidy_checks_sources_that_differ_from_the_main_branch(tmp_path):
    for name in ("low.hpp", "only.hpp", "a.cpp", "b.cpp", "c.cpp", "a_test.cpp"):
        write(tmp_path, f"engine/core/{name}", "")
    write(tmp_path, "engine/core/b.cpp", '#include "engine/core/low.hpp"\n')
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    assert check_tidy.changed_files(tmp_path) == set()
    git(tmp_path, "checkout", "-q", "-b", "branch")
    write(tmp_path, "engine/core/a.cpp", "int a;\n")
    git(tmp_path, "commit", "-q", "-a", "-m", "a")
    write(tmp_path, "engine/core/low.hpp", "int b();\n")
    write(tmp_path, "engine/core/new.cpp", "")
    write(tmp_path, "engine/core/a_test.cpp", "int t;\n")
    changed = check_tidy.changed_files(tmp_path)
    assert changed == {f"engine/core/{name}" for name in ("a.cpp", "low.hpp", "new.cpp", "a_test.cpp")}
    sources = check_tidy.sources_of(tmp_path)
    assert sources == [f"engine/core/{name}.cpp" for name in "a b c new".split()]
    shown = check_tidy.sources_showing(changed, sources, check_headers.Headers(tmp_path))
    assert shown == [f"engine/core/{name}.cpp" for name in "a b new".split()]


def test_tidy_checks_every_changed_source_however_many(tmp_path, monkeypatch):
    checked = []
    names = {f"engine/core/s{number}.cpp" for number in range(100)}
    monkeypatch.setattr(check_tidy.shutil, "which", lambda program: program)
    monkeypatch.setattr(check_tidy, "check", lambda root, sources, stamps, program: checked.extend(sources) or {})
    monkeypatch.setattr(check_tidy, "changed_files", lambda root: names)
    for name in names | {"engine/core/unchanged.cpp"}:
        write(tmp_path, name, "")
    assert check_tidy.main([str(tmp_path)]) == 0
    assert set(checked) == names


def test_tidy_checks_the_last_commit_on_the_main_branch_itself(tmp_path):
    for name in ("a.cpp", "b.cpp"):
        write(tmp_path, f"engine/core/{name}", "")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "all")
    write(tmp_path, "engine/core/b.cpp", "int b;\n")
    git(tmp_path, "commit", "-q", "-a", "-m", "b")
    assert check_tidy.changed_files(tmp_path) == {"engine/core/b.cpp"}


@pytest.mark.skipif(shutil.which("clang-tidy") is None, reason="clang-tidy is not installed")
def test_tidy_reports_findings_of_the_configured_checks(tmp_path):
    write(tmp_path, ".clang-tidy", (CI.parent / ".clang-tidy").read_text(encoding="utf-8"))
    write(tmp_path, "engine/core/good.cpp", "int twice(int value) { return 2 * value; }\n")
    write(tmp_path, "engine/core/moved.cpp", "#include <string>\n#include <utility>\nvoid take(std::string);\n")
    with (tmp_path / "engine/core/moved.cpp").open("a", encoding="utf-8") as file:
        file.write("bool f(std::string text) {\n  take(std::move(text));\n  return text.empty();\n}\n")
    said = check_tidy.check(tmp_path, check_tidy.sources_of(tmp_path), tmp_path / "stamps", "clang-tidy")
    assert list(said) == ["engine/core/moved.cpp"]
    assert "moved.cpp:6:10: error: 'text' used after it was moved [bugprone-use-after-move" in said["engine/core/moved.cpp"]
    assert len(list((tmp_path / "stamps").iterdir())) == 1  # of the clean one: a source with findings is checked again


def test_setup_lists_packages_and_needs_nothing_here():
    listed = subprocess.run([str(CI / "setup.sh"), "--tests", "--list"], capture_output=True, text=True, check=True).stdout
    assert "libtrilinos-kokkos-dev" in listed.split() and "python3-pytest" in listed.split()
    refused = subprocess.run([str(CI / "setup.sh"), "--bogus"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "--bogus" in refused.stderr


def test_a_stage_that_is_not_known_is_refused_before_anything_is_built():
    for wrong in (["--only"], ["--only", "everything"]):
        refused = subprocess.run([str(CI / "test.sh"), *wrong], capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert "--only takes one of release strict openmp" in refused.stderr


@pytest.mark.parametrize(
    "line",
    [
        "for (std::int64_t size : sizes) count *= size;",
        "count *= sizes[i];",
        "return num_elements() * 4;",
        "const auto bytes = static_cast<std::size_t>(num_elements(sizes)) * size_of(dtype);",
        "const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);",
        "const auto all = x.size(0) * x.size(1);",
        "offset += index * tensor.strides()[dim];",
        "const std::int64_t rows = sizes[0] *\n    sizes[1];",
        "const std::int64_t all = count * element_bytes;",
        "end += (sizes[dim] - 1) * step;",
        "add(linear(dim, mult * dim));",
        "windows = out_height * out_width;",
    ],
)
def test_a_raw_product_of_sizes_is_found_with_its_line(line):
    found = check_sizes.problems_in("engine/core/a.cpp", f"// A file.\n{line}\n")
    assert len(found) == 1
    assert found[0].startswith("engine/core/a.cpp:2: ")
    assert "checked_multiply" in found[0]


@pytest.mark.parametrize(
    "line",
    [
        "const std::int64_t all = checked_multiply(sizes[0], sizes[1], \"cat\");",
        "const std::int64_t all = bounded_product(x.size(0), x.size(1));",
        "out += element_offset(at, strides[dim]);",
        "// num_elements() * size_of(dtype)",
        'throw Error("num_elements() * size_of(dtype)");',
        "#define BYTES(n) ((n) * sizeof(int))",
        "void fill(float* bytes, const Tensor* sizes);",
        "const double share = static_cast<double>(num_bytes) * 0.5;",
        "constexpr std::size_t header = 2 * sizeof(std::uint64_t);",
        "bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;",
        "product *= factor;",
    ],
)
def test_what_is_no_raw_product_of_sizes_is_left_alone(line):
    assert check_sizes.problems_in("engine/core/a.cpp", f"{line}\n") == []


def test_loops_of_kernels_count_within_checked_sizes():
    assert check_sizes.problems_in("engine/kernels/a.cpp", "out += row * width;\n") == []
    assert len(check_sizes.problems_in("engine/kernels/a.cpp", "all = row * out.sizes[0];\n")) == 1


def test_a_product_put_into_this_tree_is_found(tmp_path):
    """A guarded product as an earlier engine/core/shape.hpp had it."""
    shutil.copytree(CI.parent / "engine" / "core", tmp_path / "engine" / "core")
    assert check_sizes.check(tmp_path) == []
    shape = tmp_path / "engine" / "core" / "shape.hpp"
    text = shape.read_text(encoding="utf-8")
    assert "__builtin_mul_overflow(count, size, &count)" in text
    shape.write_text(text.replace("if (__builtin_mul_overflow(count, size, &count))", "if (count *= size; false)"), "utf-8")
    assert [problem.split(":")[0] for problem in check_sizes.check(tmp_path)] == ["engine/core/shape.hpp"]
    done = subprocess.run([sys.executable, CI / "check_sizes.py", tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert "engine/core/shape.hpp" in done.stdout


def bench_line(name: str, size: int, median: float) -> str:
    return (
        f'{{"kind":"bench","group":"collectives","name":"{name}","params":{{"bytes":{size},"world_size":2}},'
        f'"unit":"us","median":{median},"low":1,"high":2,"rounds":3}}\n'
    )


def test_ratios_are_taken_within_a_turn(tmp_path):
    for turn, (mine, other) in enumerate([(10, 100), (30, 100), (80, 400)], start=1):
        (tmp_path / f"turn-{turn}-lockstep.jsonl").write_text(bench_line("all_reduce", 4, mine) + bench_line("send", 4, 1))
        (tmp_path / f"turn-{turn}-torch.jsonl").write_text(bench_line("all_reduce", 4, other))
    table, alone = bench_ratios.compare(tmp_path, "lockstep", "torch")
    ((key, mine, other, unit, ratios),) = table
    assert key == ("collectives", "all_reduce", "bytes=4 world_size=2")
    assert (mine, other, unit) == (30, 100, "us")
    assert ratios == [0.1, 0.3, 0.2]
    assert alone == [(("collectives", "send", "bytes=4 world_size=2"), "lockstep")]


def test_ratios_of_two_builds_are_of_processor_time_unless_the_benchmark_times_itself(tmp_path):
    def write_turn(side: str, cpu: float, clock: float) -> None:
        rows = [
            {"name": name, "run_type": "iteration", "real_time": clock, "cpu_time": cpu, "time_unit": "ns"}
            for name in ("operations/add/forward/small", "operations/add/backward/small/manual_time")
        ]
        rows.append({"name": "operations/add_mean", "run_type": "aggregate", "real_time": 1, "cpu_time": 1, "time_unit": "ns"})
        (tmp_path / f"turn-1-{side}.json").write_text(json.dumps({"context": {}, "benchmarks": rows}))

    write_turn("here", 20, 300)
    write_turn("there", 10, 100)
    table, alone = bench_ratios.compare(tmp_path, "here", "there")
    assert [(key[1], ratios) for key, _, _, _, ratios in table] == [
        ("add/forward/small", [2.0]),
        ("add/backward/small/manual_time", [3.0]),
    ]
    assert alone == []


SUM = """#include "engine/kernels/sum.hpp"
struct Sum {
  [[gnu::noinline]] void operator()(float* to, const float* a, long n) const {
    for (long i = 0; i < n; ++i) to[i] = %s;
  }
};
void sum(float* to, const float* a, long n) { Sum()(to, a, n); }
"""


@pytest.mark.skipif(not shutil.which("objdump") or not shutil.which("g++"), reason="needs g++ and binutils")
@pytest.mark.parametrize(
    "functor, expression, said",
    [
        ("Sum", "a[i] * a[i] + 1.0f", ""),
        ("Sum", "i == 0 ? a[0] : to[i - 1] + a[i]", "Sum is not vectorised"),  # each element depends on the previous one
        ("Product", "a[i] + 1.0f", "no function of the name Product"),
    ],
)
def test_a_hot_functor_that_is_not_vectorised_is_found(tmp_path, monkeypatch, functor, expression, said):
    write(tmp_path, "engine/kernels/sum.hpp", "#pragma once\n")
    write(tmp_path, "engine/kernels/sum.cpp", SUM % expression)
    monkeypatch.setattr(check_vectors, "HOT", {"engine/kernels/sum.cpp": [functor]})
    found = check_vectors.check(tmp_path, tmp_path / "stamps", "g++")
    assert len(found) == (2 if said else 0)
    assert all(said in message for message in found.values())


# ---- pages ----
ROOT = CI.parent
PAGES = [page for folder in ("", "ci", "engine", "engine/*", "harness", "reports", "scenarios") for page in ROOT.glob(f"{folder}/*.md".lstrip("/"))]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def anchor_of(heading: str) -> str:
    """The anchor that Markdown renderers give a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_a_file_and_a_heading(page):
    broken = []
    for target, anchor in LINK.findall(page.read_text(encoding="utf-8")):
        if ":" in target:
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            broken.append(target)
        elif anchor and anchor not in {anchor_of(line.lstrip("#")) for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")}:
            broken.append(f"{target}#{anchor}")
    assert broken == []


def test_the_picture_of_the_layers_shows_every_layer():
    picture = (ROOT / "engine/layers.svg").read_text(encoding="utf-8")
    assert [layer for layer in check_layers.ORDER if f">{layer}<" not in picture] == []


def test_architecture_and_contributing_name_existing_paths():
    missing = []
    for page in ("ARCHITECTURE.md", "CONTRIBUTING.md"):
        for path in re.findall(r"`((?:engine|harness|reports|scenarios|ci)/[\w./]*)`", (ROOT / page).read_text(encoding="utf-8")):
            if not list(ROOT.glob(f"{path.rstrip('/')}*")):
                missing.append(f"{page}: {path}")
    assert missing == []
