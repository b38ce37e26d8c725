#!/usr/bin/env bash
# A failure at every point: every call of the program for a file, memory, a process, a thread or a socket fails once, each in a
# run of its own. The run must end, name the failure and a remedy, return a documented exit code, and leave nothing behind.
#
#   ci/faults.sh [SCENE...] [--sample N --seed S]     default: all scenes, all points
#   ci/faults.sh --help                               every option
#
# The program must be built (build/bin/lockstep, or LOCKSTEP_PROGRAM). Exit codes: 0 nothing is wrong, 1 a run is, 2 usage, 3 a scene
# fails without a fault.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

exec "$python" "$root/ci/faults" "$@"
