#!/usr/bin/env bash
# Every test: unit tests, scenarios, seeded defects, the reports' and the scripts' own tests. This is what green means.
#
#   ci/test.sh                      release build
#   ci/test.sh --full               and clang-tidy over every source, each benchmark once, and under the address,
#                                   undefined-behaviour, leak and thread sanitizers the unit tests and all scenarios as threads
#   ci/test.sh --kokkos4            only the kernels and two scenarios, in a build against Kokkos 4 with OpenMP
#   ci/test.sh -R '^unit/'          further arguments go to ctest
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

full=false
kokkos4=false
arguments=()
for argument in "$@"; do
  case "$argument" in
    --full) full=true ;;
    --kokkos4) kokkos4=true ;;
    -h | --help)
      sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) arguments+=("$argument") ;;
  esac
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

if ! $full; then
  "$root/ci/setup.sh" --tests
  stage release tests_of release
else
  "$root/ci/setup.sh" --tests --bench
  stage release tests_of release
  stage tidy "$root/ci/check.sh" tidy-all
  stage benchmarks every_benchmark_once
  stage asan tests_of asan
  stage tsan tests_of tsan
fi

if ((${#failed[@]})); then
  say "failed: ${failed[*]}"
  exit 1
fi
