#!/usr/bin/env bash
# Runs scenarios on sim under schedules that decide who runs next (engine/core/schedule.hpp).
#
#   ci/schedules.sh [NUMBER] [SEED]   NUMBER (200) schedules per scenario of replicate/, training/, bugs/ and collectives/,
#                                     seeds from SEED (1)
#   ci/schedules.sh --missing-waits   only the first part
#
# 1. Each seeded defect that leaves out a wait fails by schedules alone: without the order check, and not by the plan. On the
#    stand-in of CUDA, the order check finds it.
# 2. All scenarios of the four folders pass all their schedules, which their cases share: half of them pct, half random.
# A schedule that fails is in build/schedules, and the output has the command that repeats it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

only_missing=false
if [[ ${1:-} == --missing-waits ]]; then
  only_missing=true
  shift
fi
number="${1:-200}" seed="${2:-1}"
[[ $number =~ ^[1-9][0-9]*$ && $seed =~ ^[0-9]+$ ]] || {
  sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  exit 2
}
export OPENBLAS_NUM_THREADS=1
lockstep="${LOCKSTEP_PROGRAM:-}"  # of a build that exists
if [[ -z $lockstep ]]; then
  "$root/ci/build.sh" release lockstep
  lockstep="$(build_folder release)/bin/lockstep"
fi
files="$root/build/schedules"
rm -rf "$files"

# The defects of the table of waits (engine/parallel/waits.cpp), the number of schedules, and the cases.
missing_waits=(
  "replicate_wait_left_out 1 beyond/averaged_weights"
  "shard_gather_ignores_optimizer 1 beyond/averaged_weights"
  "shard_unshard_ignores_compute 1 beyond/unshard_by_hand"
  "shard_gather_ignores_kept_parts 1 bits/reshard --case reshard_after_forward=2,optimizer=Adam,world_size=4"
  "shard_gather_ignores_copy_in 1 beyond/averaged_weights"
  "shard_compute_ignores_gather 1 beyond/averaged_weights"
  "shard_optimizer_ignores_unused_gather 600 bugs/unused_prefetch_of_evaluation"
  "shard_input_freed_early 1 beyond/averaged_weights"
  "shard_output_freed_early 1 beyond/averaged_weights"
  "flat_memory_freed_early 1 compose/replicate_leaves_out_sharded"
  "shard_reduction_ignores_compute 1 beyond/averaged_weights"
  "shard_reduction_input_freed_early 1 beyond/averaged_weights"
  "shard_all_reduce_ignores_reduce_scatter 1 beyond/flags_of_one_group"
  "shard_optimizer_ignores_reduction 1 beyond/flags_of_one_group"
  "shard_host_ignores_offload 1 bugs/offloaded_gradients_arrive"
)
failed=0
for each in "${missing_waits[@]}"; do
  read -r defect count scenario options <<<"$each"
  # shellcheck disable=SC2086
  "$lockstep" run "$scenario" ${options:+$options} --schedule pct:2,1 --schedules "$count" --no-order-check \
    --defect "$defect" --fail-fast --schedule-files "$files/$defect" -q --progress never --color never >/dev/null 2>&1 &&
    code=0 || code=$?
  found="$(cat "$files/$defect"/schedule-* 2>/dev/null | grep '^check: ' | grep -v '^check: plan' | head -n 1 || true)"
  if ((code == 1)) && [[ -n $found ]]; then
    printf 'found   %-40s %s: %s\n' "$defect" "$scenario" "${found:7:60}"
  else
    printf 'MISSED  %-40s %s\n' "$defect" "$scenario"
    failed=1
  fi
  # shellcheck disable=SC2086
  said="$(LOCKSTEP_CUDA=stand-in "$lockstep" run "$scenario" ${options:+$options} --device cuda --defect "$defect" --fail-fast -q \
    --progress never --color never 2>&1)" && code=0 || code=$?
  if ((code != 1)) || ! grep -q ': order, rank ' <<<"$said"; then
    printf 'MISSED  %-40s %s on the stand-in of CUDA\n' "$defect" "$scenario"
    failed=1
  fi
done
! $only_missing || exit $failed

# Scenarios with as many cases get as many schedules per case: one run for them all.
"$lockstep" list 'replicate/*' 'training/*' 'bugs/*' 'collectives/*' --json | "$python" -c "
import json, sys
groups = {}
for row in json.load(sys.stdin):
    groups.setdefault(-(-$number // (2 * len(row['cases']))), []).append(row['scenario'])
for count in sorted(groups):
    print(count, *groups[count])" >"$root/build/schedules.txt"
for policy in "pct:3,$seed" "random:$seed"; do
  while read -r count scenarios; do
    say "$count schedules per case from $policy for $(wc -w <<<"$scenarios") scenarios"
    # shellcheck disable=SC2086
    "$lockstep" run $scenarios --schedule "$policy" --schedules "$count" -q --timeout 600 \
      --schedule-files "$files/${policy%%:*}" --progress never --color never </dev/null || failed=1
  done <"$root/build/schedules.txt"
done
exit $failed
