#!/usr/bin/env bash
# Gives the readers of files random bytes: each must read them or refuse them with a named error.
#
#   ci/fuzz.sh [SECONDS] [FUZZER...]      default: 60 seconds for each fuzzer
#
# A fuzzer is a source *_fuzz.cpp, built by clang with libFuzzer and sanitizers in build-fuzz/. It starts from its corpus
# in ci/corpus/FUZZER where there is one (scenario_fuzz reads scenarios/), which it leaves as it is; inputs that reach
# new code are kept in build-fuzz/corpus for the next run. An input that fails is kept in build-fuzz/findings, and the
# command that repeats it is printed. Exits with 1 then.
# --merge adds what was found in build-fuzz/corpus to ci/corpus, as far as it reaches new code.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

seconds=60 merge=false names=()
for argument in "$@"; do
  case "$argument" in
    -h | --help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
    --merge) merge=true ;;
    *[!0-9]*) names+=("$argument") ;;
    *) seconds="$argument" ;;
  esac
done
command -v clang++ >/dev/null || {
  echo "fuzz: there is no clang++ (ci/setup.sh --fuzz installs it)" >&2
  exit 3
}
known=()
for source in "$root"/{engine,harness}/*/*_fuzz.cpp; do known+=("$(basename "$source" .cpp)"); done
((${#names[@]})) || names=("${known[@]}")
for name in "${names[@]}"; do
  [[ " ${known[*]} " == *" $name "* ]] || {
    echo "fuzz: there is no fuzzer '$name'; there are ${known[*]}" >&2
    exit 2
  }
done

"$root/ci/build.sh" fuzz "${names[@]}"
folder="$(build_folder fuzz)"
# Short stacks of allocations, and no weights by rare features: both cost more than the readers themselves.
export ASAN_OPTIONS=detect_leaks=1:malloc_context_size=2:quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1

fuzz() { # NAME
  local name="$1" log="$folder/$1.log" grown="$folder/corpus/$1" findings="$folder/findings" finding
  local corpora=("$grown")
  [[ ! -d $root/ci/corpus/$name ]] || corpora+=("$root/ci/corpus/$name")
  local options=(-entropic=0 -timeout=20 -rss_limit_mb=4096)
  [[ $name != scenario_fuzz ]] || {
    corpora+=("$root"/scenarios/*/)
    options+=(-max_len=2048)  # a longer one is cut off: it takes the time of several
  }
  mkdir -p "$grown" "$findings"
  if "$folder/fuzzers/$name" -max_total_time="$seconds" "${options[@]}" -print_final_stats=1 \
    -artifact_prefix="$findings/$name-" "${corpora[@]}" >"$log" 2>&1; then
    awk -v name="$name" '/number_of_executed_units/ { runs = $2 } /average_exec_per_sec/ { rate = $2 }
      END { printf "ok      %s: %d inputs, %d in a second\n", name, runs, rate }' "$log"
    return
  fi
  echo "FAILED  $name: $(grep -am1 -E 'ERROR|runtime error|what\(\)' "$log" || tail -1 "$log")"
  finding="$(grep -ao "$findings/$name-[a-z]*-[0-9a-f]*" "$log" | tail -1 || true)"
  echo "        again: $folder/fuzzers/$name $finding"
  return 1
}

# As many at once as there are cores.
failed=0
running=0
for name in "${names[@]}"; do
  if ((running == $(nproc))); then
    wait -n || failed=1
    running=$((running - 1))
  fi
  fuzz "$name" &
  running=$((running + 1))
done
for ((; running > 0; --running)); do wait -n || failed=1; done

if $merge; then
  for name in "${names[@]}"; do
    mkdir -p "$root/ci/corpus/$name"
    "$folder/fuzzers/$name" -merge=1 "$root/ci/corpus/$name" "$folder/corpus/$name" >>"$folder/$name.log" 2>&1
  done
fi
exit "$failed"
