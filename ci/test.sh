#!/usr/bin/env bash
# Runs every test: this script defines green.
#
#   ci/test.sh                      stage release, and one of strict, openmp, cuda-kernels and fuzz: another each day
#   ci/test.sh -R '^unit/'          stage release only; ctest gets the arguments
#   ci/test.sh --only STAGE         one stage; repeat the option for several
#   ci/test.sh --full               every stage but kokkos4 and cuda
#   ci/test.sh --kokkos4            stage kokkos4 only
#   ci/test.sh --cuda               stage cuda only
#
#   stage       does                                                                                      minutes on two cores
#   release     builds the program and its tests, runs unit tests, scenarios, seeded defects, reports' and scripts' tests     50
#   strict      compiles the program for any x86-64, without precompiled headers, with every warning of g++; each header alone              12
#   openmp      builds the kernels' tests against Kokkos 4 with OpenMP, runs them with two threads                             3
#   cuda-kernels  compiles and links the kernels and the devices and their tests with CUDA; skipped where there is no nvcc       8
#   fuzz        builds the fuzzers of the readers by clang with sanitizers, runs each for 60 seconds                            9
#   programs    runs training programs of a grammar for five minutes, by a seed that it prints                                  6
#   mutants     100 mutants in 24 sources, drawn by a seed that it prints: as many as its bars must be caught                 10
#   steps       leaves out each step of every scenario; the test `mutate` of release does so in some folders                    20
#   schedules   leaves out each wait and finds it by schedules; runs three folders under 200 schedules per scenario            35
#   tidy        runs clang-tidy on every source                                                                               10
#   benchmarks  runs each benchmark once                                                                                       5
#   asan, tsan  run unit tests and all scenarios, ranks as threads, under the sanitizers                               60 to 120
#   kokkos4     builds against Kokkos 4 with OpenMP, runs the kernels' tests, and three folders of scenarios with two
#               threads per rank, whose bits equal those of the release build                                                 15
#   cuda        builds the program and its tests with the cuda device; runs them all where there is a GPU, and elsewhere what
#               needs none                                                                                                    40
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

known_stages=(release strict openmp cuda-kernels fuzz programs mutants steps schedules tidy benchmarks asan tsan kokkos4 cuda)
stages=()
arguments=()
while (($#)); do
  case "$1" in
    --full) stages=(release strict openmp cuda-kernels fuzz programs mutants steps schedules tidy benchmarks asan tsan) ;;
    --kokkos4) stages+=(kokkos4) ;;
    --cuda) stages+=(cuda) ;;
    --only)
      shift
      [[ -n ${1:-} && " ${known_stages[*]} " == *" $1 "* ]] || {
        echo "test: --only takes one of ${known_stages[*]}, not '${1:-}'" >&2
        exit 2
      }
      stages+=("$1")
      ;;
    -h | --help)
      sed -n '2,27s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
if ((!${#stages[@]})); then
  # These builds compile most of the sources once more. All four each time would take as long as stage release.
  in_turn=(strict openmp cuda-kernels fuzz)
  stages=(release)
  ((${#arguments[@]})) || stages+=("${in_turn[10#$(date +%j) % 4]}")
fi

programs_of_a_grammar() {
  "$root/ci/build.sh" release lockstep
  "$(build_folder release)/bin/lockstep" fuzz --seconds 300 --seed "$(date +%j)" --output "$root/build/programs"
}

failed=()
failures=""
stage() { # NAME COMMAND...: runs the command and reports its time; a failure does not stop the later stages
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
  local folder
  folder="$(build_folder "$1")"
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$(nproc)" "${arguments[@]}" && return
  failures+="$(failed_cases "$folder")"
  return 1
}
failed_cases() { # FOLDER: what failed in the last run of ctest, case by case, without the output of what passed
  grep -hE -A4 '^(FAIL|XPASS|HANG|CRASH|INVALID|MISSING) |^\[  FAILED  \]|: Failure$|^(FAIL|ERROR): ' \
    "$1/Testing/Temporary/LastTest.log" | head -n 60 || true
}
strict_build() {
  "$root/ci/build.sh" strict && "$root/ci/check.sh" headers vectors
}
every_benchmark_once() {
  "$root/ci/build.sh" release lockstep_benchmarks || return
  OPENBLAS_NUM_THREADS=1 "$root/build/bin/lockstep_benchmarks" --benchmark_min_time=0 >/dev/null
}
kernels_tests_of_openmp() {
  "$root/ci/build.sh" kokkos4 kernels_tests || return
  ctest --test-dir "$(build_folder kokkos4)" --output-on-failure --no-tests=error -R '^unit/kernels$'
}
# Threads within a kernel. Ranks are processes there: launches from several threads would wait for each other.
tests_of_kokkos4() {
  local bits
  bits="$(build_folder kokkos4)/bits"
  "$root/ci/build.sh" kokkos4 lockstep kernels_tests && "$root/ci/build.sh" release lockstep || return
  rm -rf "$bits"
  ctest --test-dir "$(build_folder kokkos4)" --output-on-failure --no-tests=error -L backend "${arguments[@]}" || return
  # The tests/backend scenarios above left their hashes in bits/threads.
  OPENBLAS_NUM_THREADS=1 "$root/build/bin/lockstep" run 'replicate/*' 'training/*' 'state_dict/*' --launch process -q \
    --trace-bits "$bits/serial" && "$root/build/bin/lockstep" compare --trace "$bits/serial" "$bits/threads"
}
# The bars lie below what a sample of 700 gave (ci/README.md), because few sources, and fewer cases of each scenario, vary more.
sample_of_mutants() {
  "$root/ci/build.sh" release lockstep tests || return
  "$root/ci/mutants.sh" --sources 24 --sample 100 --cases 3 --longest 2.5 --seconds 420 --caught 55 --by-scenarios 35
}
steps_left_out() {
  "$root/ci/build.sh" release lockstep || return
  # fuzz/: a grammar chooses the steps, and they are compared with the values of a model alone, which many must not change.
  local folders
  mapfile -t folders < <(cd "$root/scenarios" && find . -mindepth 1 -maxdepth 1 -type d ! -name fuzz ! -name lib ! -name machines -printf '%f/*\n')
  OPENBLAS_NUM_THREADS=1 "$(build_folder release)/bin/lockstep" mutate "${folders[@]}"
}
cuda_kernels() {
  if ! find_nvcc >/dev/null; then
    say "cuda-kernels: skipped, because there is no nvcc on PATH, in \$CUDA_ROOT/bin or in /usr/local/cuda/bin"
    return
  fi
  "$root/ci/build.sh" cuda-kernels
}

# Without a GPU: the tests of the layers and some scenarios on cpu and sim, which must not need a driver, and the words of a
# case on cuda. With one, all tests and all scenarios on cuda.
tests_of_cuda() {
  local folder program words
  "$root/ci/build.sh" cuda lockstep tests || return
  folder="$(build_folder cuda)"
  program="$folder/bin/lockstep"
  if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    say "cuda: testing on $(nvidia-smi -L | head -n 1)"
    ctest --test-dir "$folder" --output-on-failure --no-tests=error -j 4 -R '^unit/' || return
    "$program" run --device cuda --launch process --results "$folder/cuda-processes.jsonl" -q || return
    "$program" run --device cuda --launch thread --results "$folder/cuda-threads.jsonl" -q
    return
  fi
  say "cuda: no GPU; testing what needs none"
  ctest --test-dir "$folder" --output-on-failure --no-tests=error -j "$(nproc)" -R '^unit/(core|device|kernels|comm)' || return
  "$program" run 'replicate/*' -q || return
  words="$("$program" run 'replicate/*' --device cuda --color never --progress never 2>&1 || true)"
  grep -q 'this machine has no Nvidia driver' <<<"$words" || {
    printf 'cuda: a case on cuda does not say that there is no driver:\n%s\n' "$(tail -n 20 <<<"$words")" >&2
    return 1
  }
}

needed=(--tests)
[[ " ${stages[*]} " != *" benchmarks "* ]] || needed+=(--bench)
[[ " ${stages[*]} " != *" openmp "* && " ${stages[*]} " != *" kokkos4 "* ]] || needed+=(--kokkos4)
[[ " ${stages[*]} " != *" cuda"* ]] || needed+=(--cuda)
[[ " ${stages[*]} " != *" fuzz "* ]] || needed+=(--fuzz)
"$root/ci/setup.sh" "${needed[@]}"
for name in "${stages[@]}"; do
  case "$name" in
    release | asan | tsan) stage "$name" tests_of "$name" ;;
    strict) stage strict strict_build ;;
    openmp) stage openmp kernels_tests_of_openmp ;;
    cuda-kernels) stage cuda-kernels cuda_kernels ;;
    cuda) stage cuda tests_of_cuda ;;
    fuzz) stage fuzz "$root/ci/fuzz.sh" 60 ;;
    programs) stage programs programs_of_a_grammar ;;
    mutants) stage mutants sample_of_mutants ;;
    steps) stage steps steps_left_out ;;
    schedules) stage schedules "$root/ci/schedules.sh" ;;
    tidy) stage tidy "$root/ci/check.sh" tidy-all ;;
    benchmarks) stage benchmarks every_benchmark_once ;;
    kokkos4) stage kokkos4 tests_of_kokkos4 ;;
  esac
done

if ((${#failed[@]})); then
  [[ -z $failures ]] || printf '%s\n' "$failures"
  say "failed: ${failed[*]}"
  exit 1
fi
