#!/usr/bin/env bash
# Random damage to running programs: ranks, launchers and guardians are killed, stopped and continued, disks are full. Nothing may
# hang or remain, the rank that is to blame must be named, and a pause shorter than the deadline must not matter.
#
#   ci/soak.sh SECONDS [SEED]                        the seed is printed; SEED repeats the injections, not their exact moments
#   ci/soak.sh SECONDS [SEED] --collectives 100000   also so many collectives while ranks are paused for 80 % of the deadline
#   ci/soak.sh SECONDS SEED --number N               only the N-th injection, with its output
#
# The program must be built (build/bin/lockstep, or LOCKSTEP_PROGRAM). Full disks need a user who may mount a file system. Exit codes:
# 0 nothing is wrong, and 99 % of those to blame are named; 1 otherwise; 2 usage.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec "$python" "$root/ci/faults/soak.py" "$@"
