#!/usr/bin/env bash
# The checks that need no build: format, layers, sizes, headers, vector instructions, and clang-tidy over changed sources.
#
#   ci/check.sh                 all six
#   ci/check.sh format|layers|sizes|headers|vectors|tidy|tidy-all
#
# The format is that of clang-format 14 (Debian 12); `clang-format -i FILE` applies it. Products of sizes use the functions of
# engine/core/checked.hpp. A header must compile alone, and included twice. The hot kernels must have vector instructions when
# compiled for AVX2 and for AVX-512. clang-tidy checks the sources that differ from the main branch (tidy-all: every source), with
# the checks in .clang-tidy. A file that passed is not compiled again until it changes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check_format() {
  local files
  mapfile -d '' files < <(find "$root/engine" "$root/harness" \( -name '*.hpp' -o -name '*.cpp' \) -print0)
  ((${#files[@]})) || return 0
  command -v clang-format >/dev/null || {
    echo "check: clang-format is missing; ci/setup.sh --tests installs it" >&2
    return 3
  }
  # One process per core. The output names each file with a wrong format.
  printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" clang-format --style=file --dry-run -Werror
}
check_layers() { "$python" "$root/ci/check_layers.py" "$root"; }
check_sizes() { "$python" "$root/ci/check_sizes.py" "$root"; }
check_headers() { "$python" "$root/ci/check_headers.py" "$root"; }
check_vectors() { "$python" "$root/ci/check_vectors.py" "$root"; }
check_tidy() { "$python" "$root/ci/check_tidy.py" "$root"; }
check_tidy-all() { "$python" "$root/ci/check_tidy.py" "$root" --all; }

checks=("$@")
((${#checks[@]})) || checks=(format layers sizes headers vectors tidy)
failed=()
for check in "${checks[@]}"; do
  case "$check" in
    format | layers | sizes | headers | vectors | tidy | tidy-all) "check_$check" || failed+=("$check") ;;
    -h | --help)
      sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "check: unknown check '$check'; known are format, layers, sizes, headers, vectors, tidy, tidy-all" >&2
      exit 2
      ;;
  esac
done
if ((${#failed[@]})); then
  echo "check: failed: ${failed[*]}" >&2
  exit 1
fi
