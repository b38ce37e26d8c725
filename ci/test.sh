#!/usr/bin/env bash
# Every test: unit tests, scenarios, seeded defects, the reports' and the scripts' own tests. This is what green means.
#
#   ci/test.sh                      release build
#   ci/test.sh --full               and clang-tidy over every source, each benchmark once, and under the address,
#                                   undefined-behaviour, leak and thread sanitizers the unit tests and all scenarios as threads
#   ci/test.sh --only STAGE         one part of --full: release, tidy, benchmarks, asan or tsan
#   ci/test.sh --kokkos4            only the kernels and two scenarios, in a build against Kokkos 4 with OpenMP
#   ci/test.sh -R '^unit/'          further arguments go to ctest
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

stages=(release)
kokkos4=false
arguments=()
while (($#)); do
  case "$1" in
    --full) stages=(release tidy benchmarks asan tsan) ;;
    --only)
      shift
      [[ "${1:-}" =~ ^(release|tidy|benchmarks|asan|tsan)$ ]] || {
        echo "test: --only takes release, tidy, benchmarks, asan or tsan, not '${1:-}'" >&2
        exit 2
      }
      stages=("$1")
      ;;
    --kokkos4) kokkos4=true ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

if $kokkos4; then
  # Another backend: threads within a kernel. Ranks are processes there, as launches from several threads wait for each other.
  "$root/ci/setup.sh" --tests --kokkos4
  say "building the program and the kernels' tests (kokkos4)"
  "$root/ci/build.sh" kokkos4 lockstep kernels_tests
  say "testing (kokkos4)"
  exec ctest --test-dir "$(build_folder kokkos4)" --output-on-failure --no-tests=error -L backend "${arguments[@]}"
fi

failed=()
stage() { # NAME COMMAND...: runs it, says how long it took, and goes on when it fails
  local name="$1" began=$SECONDS
  shift
  say "$name"
  if "$@"; then
    say "$name: passed in $((SECONDS - began)) s"
  else
    failed+=("$name")
    say "$name: FAILED in $((SECONDS - began)) s"
  fi
}
tests_of() { # PRESET
  "$root/ci/build.sh" "$1" lockstep tests || return
  say "$1: built; testing"
  ctest --test-dir "$(build_folder "$1")" --output-on-failure --no-tests=error -j "$(nproc)" "${arguments[@]}"
}
every_benchmark_once() {
  "$root/ci/build.sh" release lockstep_benchmarks || return
  OPENBLAS_NUM_THREADS=1 "$root/build/bin/lockstep_benchmarks" --benchmark_min_time=0 >/dev/null
}

needed=(--tests)
[[ " ${stages[*]} " != *" benchmarks "* ]] || needed+=(--bench)
"$root/ci/setup.sh" "${needed[@]}"
for name in "${stages[@]}"; do
  case "$name" in
    release | asan | tsan) stage "$name" tests_of "$name" ;;
    tidy) stage tidy "$root/ci/check.sh" tidy-all ;;
    benchmarks) stage benchmarks every_benchmark_once ;;
  esac
done

if ((${#failed[@]})); then
  say "failed: ${failed[*]}"
  exit 1
fi
