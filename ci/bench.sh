#!/usr/bin/env bash
# Measures speed in turns: both sides run alternately in one sitting, and each turn gives a ratio of medians, so that a slow
# minute of the machine affects both sides.
#
#   ci/bench.sh [collectives] [steps]                  Lockstep and PyTorch with gloo; default: both groups, 3 turns
#   ci/bench.sh --turns 5 steps
#   ci/bench.sh --device cuda                          the same on GPUs, with NCCL, one rank per GPU (--world-size, default 1)
#   ci/bench.sh operations [--filter REGEX]            every operation and the hot code of engine/device, by Google Benchmark
#   ci/bench.sh operations --against FOLDER            in turns with the build in FOLDER, the build/ of another checkout made by
#                                                      the same command; ratios are this build over that one
#
# LOCKSTEP_PEER_PYTHON names a Python with torch; otherwise one is installed under build/peer (about 200 MB). The measurements stay in
# build/bench.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

turns=3
filter=.
device=cpu
world_size=
against=
groups=()
value_of() { # OPTION [VALUE...]: the value, or usage
  [[ $# -ge 2 && -n $2 ]] || {
    echo "bench: $1 needs a value; see ci/bench.sh --help" >&2
    exit 2
  }
  printf '%s\n' "$2"
}
while (($#)); do
  case "$1" in
    --turns)
      turns="$(value_of "$@")"
      shift
      ;;
    --device)
      device="$(value_of "$@")"
      [[ $device == cpu || $device == cuda ]] || {
        echo "bench: --device is cpu or cuda; see ci/bench.sh --help" >&2
        exit 2
      }
      shift
      ;;
    --world-size)
      world_size="$(value_of "$@")"
      shift
      ;;
    --filter)
      filter="$(value_of "$@")"
      shift
      ;;
    --against)
      against="$(value_of "$@")"
      shift
      ;;
    collectives | steps | operations) groups+=("$1") ;;
    -h | --help)
      sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "bench: unknown argument '$1'; see ci/bench.sh --help" >&2
      exit 2
      ;;
  esac
  shift
done
((${#groups[@]})) || groups=(collectives steps)
folder="$root/build/bench"
export OPENBLAS_NUM_THREADS=1

bench_operations() {
  "$root/ci/setup.sh" --bench
  "$root/ci/build.sh" release lockstep_benchmarks
  local here="$root/build/bin/lockstep_benchmarks" there="$against/bin/lockstep_benchmarks" turn
  if [[ -z $against ]]; then
    mkdir -p "$folder"
    "$here" --benchmark_filter="$filter" --benchmark_min_time=0.1 --benchmark_out="$folder/operations.json"
    return
  fi
  if [[ ! -x $there ]]; then
    echo "bench: there is no $there; run \`ci/bench.sh operations\` in that checkout first" >&2
    exit 2
  fi
  local turns_folder="$folder/builds"
  mkdir -p "$turns_folder"
  rm -f "$turns_folder"/turn-*.json
  for ((turn = 1; turn <= turns; ++turn)); do
    say "turn $turn of $turns: operations, here and in $against"
    "$here" --benchmark_filter="$filter" --benchmark_min_time=0.1 --benchmark_out="$turns_folder/turn-$turn-here.json" >/dev/null
    "$there" --benchmark_filter="$filter" --benchmark_min_time=0.1 --benchmark_out="$turns_folder/turn-$turn-there.json" >/dev/null
  done
  "$python" "$root/ci/bench_ratios.py" "$turns_folder" here there
}

bench_beside_torch() {
  local preset=release program="$root/build/bin/lockstep" where=()
  if [[ $device == cuda ]]; then
    preset=cuda program="$root/build-cuda/bin/lockstep"
    where=(--device cuda --world-size "${world_size:-1}")
  elif [[ -n $world_size ]]; then
    where=(--world-size "$world_size")
  fi
  "$root/ci/setup.sh"
  "$root/ci/build.sh" "$preset" lockstep
  local peer="${LOCKSTEP_PEER_PYTHON:-$root/build/peer/bin/python}" turn group ours
  if [[ -z ${LOCKSTEP_PEER_PYTHON:-} ]] && ! "$peer" -c 'import torch' 2>/dev/null; then
    say "installing torch under build/peer"
    "$python" -m venv --clear "$root/build/peer" || {
      echo "bench: python3-venv is missing: apt-get install python3-venv, or set LOCKSTEP_PEER_PYTHON" >&2
      exit 3
    }
    "$peer" -m pip install --quiet torch numpy
  fi
  mkdir -p "$folder"
  rm -f "$folder"/turn-*.jsonl
  for ((turn = 1; turn <= turns; ++turn)); do
    for group in "$@"; do
      say "turn $turn of $turns: $group"
      ours="$folder/turn-$turn-lockstep.jsonl"
      "$program" bench "$group" --json "${where[@]}" >>"$ours"
      "$peer" "$root/ci/peer_torch.py" "$group" --like "$ours" "${where[@]}" >>"$folder/turn-$turn-torch.jsonl"
    done
  done
  "$python" "$root/ci/bench_ratios.py" "$folder" lockstep torch
}

beside_torch=()
for group in "${groups[@]}"; do
  if [[ $group == operations ]]; then bench_operations; else beside_torch+=("$group"); fi
done
((${#beside_torch[@]} == 0)) || bench_beside_torch "${beside_torch[@]}"
