#!/usr/bin/env bash
# From a fresh clone to a report: installs missing packages, builds the program, runs the scenarios.
#
#   ci/run.sh                                all scenarios
#   ci/run.sh 'replicate/*' --device sim     any arguments of `lockstep run`
#
# Writes index.html, results.jsonl and junit.xml to build/report/ (--report, --results and --junit name other places), prints the
# summary, and exits with the code of `lockstep run`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$root/ci/setup.sh"
"$root/ci/build.sh" release lockstep

given() {
  local option="$1" argument
  shift
  for argument in "$@"; do
    [[ $argument == "$option" || $argument == "$option="* ]] && return 0
  done
  return 1
}

arguments=("$@")
given --results "$@" || arguments+=(--results "$root/build/report/results.jsonl")
given --junit "$@" || arguments+=(--junit "$root/build/report/junit.xml")
given --report "$@" || arguments+=(--report "$root/build/report")
mkdir -p "$root/build/report"

# One BLAS thread a rank; set here, the program need not start itself a second time for it.
export OPENBLAS_NUM_THREADS=1
exec "$root/build/bin/lockstep" run "${arguments[@]}"
