#!/usr/bin/env bash
# Lockstep against PyTorch with gloo, on this machine, in one sitting: the two take turns, and the ratio of each turn's
# medians is what is compared, so that a slow minute of the machine meets both.
#
#   ci/bench.sh [collectives] [steps]       default: both, 3 turns
#   ci/bench.sh --turns 5 steps
#
# LOCKSTEP_PEER_PYTHON names a python that has torch; else one is installed under build/peer (some 200 MB).
# The JSON lines stay in build/bench.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

turns=3
groups=()
while (($#)); do
  case "$1" in
    --turns)
      turns="${2:?bench: --turns needs a number}"
      shift
      ;;
    collectives | steps) groups+=("$1") ;;
    -h | --help)
      sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
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

"$root/ci/setup.sh"
"$root/ci/build.sh" release lockstep

peer="${LOCKSTEP_PEER_PYTHON:-$root/build/peer/bin/python}"
if [[ -z ${LOCKSTEP_PEER_PYTHON:-} ]] && ! "$peer" -c 'import torch' 2>/dev/null; then
  say "installing torch under build/peer"
  "$python" -m venv --clear "$root/build/peer" || {
    echo "bench: python3-venv is missing: apt-get install python3-venv, or set LOCKSTEP_PEER_PYTHON" >&2
    exit 3
  }
  "$peer" -m pip install --quiet torch numpy
fi

folder="$root/build/bench"
mkdir -p "$folder"
rm -f "$folder"/turn-*.jsonl
export OPENBLAS_NUM_THREADS=1
for ((turn = 1; turn <= turns; ++turn)); do
  for group in "${groups[@]}"; do
    say "turn $turn of $turns: $group"
    ours="$folder/turn-$turn-lockstep.jsonl"
    "$root/build/bin/lockstep" bench "$group" --json >>"$ours"
    "$peer" "$root/ci/peer_torch.py" "$group" --like "$ours" >>"$folder/turn-$turn-torch.jsonl"
  done
done
"$python" "$root/ci/bench_ratios.py" "$folder"
