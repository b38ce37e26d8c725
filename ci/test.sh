#!/usr/bin/env bash
# Every test: unit tests, scenarios, seeded defects, the reports' and the scripts' own tests. This is what green means.
#
#   ci/test.sh                      release build
#   ci/test.sh --full               and unit tests and scenarios under the address, undefined-behaviour and thread sanitizers
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
      sed -n '2,7s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
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

"$root/ci/setup.sh" --tests

presets=(release)
$full && presets+=(asan tsan)
failed=()
for preset in "${presets[@]}"; do
  say "building the program and the tests ($preset)"
  "$root/ci/build.sh" "$preset" lockstep tests
  say "testing ($preset)"
  ctest --test-dir "$(build_folder "$preset")" --output-on-failure --no-tests=error -j "$(nproc)" "${arguments[@]}" ||
    failed+=("$preset")
done

if ((${#failed[@]})); then
  say "failed: ${failed[*]}"
  exit 1
fi
