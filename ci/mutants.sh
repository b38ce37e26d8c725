#!/usr/bin/env bash
# Mutants of the engine: small changes of its sources, each of which a scenario or a unit test should catch.
#
#   ci/mutants.sh [FOLDER...] [--sample N --seed S]     default: all folders, all mutants
#   ci/mutants.sh --sources N [--seed S]                only mutants in N sources, drawn by the seed; needs the release build
#   ci/mutants.sh --help                                every option
#
# All mutants are compiled into one build, in build-mutants/, and switched on by number. Each runs cases of the scenarios that
# reach it, on cpu, on sim and on two hosts, then the unit tests that do: first the quick, and those that caught mutants near it. The
# table counts those that checks of scenarios caught, those that only `lockstep compare` with a run without the mutant shows, those
# that only unit tests caught, and those that nothing caught. Mutants that no test can tell from
# the original are listed in ci/mutants/equivalent.txt.
# Exit codes: 0 enough mutants are caught, 1 too few, 2 usage, 3 the tool or the build failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$root/ci/setup.sh" --tests
mkdir -p "$root/build-mutants"
exec 9>"$root/build-mutants/.lock"
flock 9
exec "$python" "$root/ci/mutants" "$@" 9>&-
