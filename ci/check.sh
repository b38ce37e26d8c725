#!/usr/bin/env bash
# The checks that need no build: format, layers, headers.
#
#   ci/check.sh                 all three
#   ci/check.sh format|layers|headers
#
# Format is clang-format 14's (Debian 12); `clang-format -i FILE` mends it. A header must compile on its own and included
# twice; what was checked before and has not changed is not compiled again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

check_format() {
  local files
  mapfile -d '' files < <(find "$root/engine" "$root/harness" \( -name '*.hpp' -o -name '*.cpp' \) -print0)
  ((${#files[@]})) || return 0
  command -v clang-format >/dev/null || {
    echo "check: clang-format is missing; ci/setup.sh --tests installs it" >&2
    return 3
  }
  # One process a core; the output of a file that is not formatted names it.
  printf '%s\0' "${files[@]}" | xargs -0 -n 16 -P "$(nproc)" clang-format --style=file --dry-run -Werror
}
check_layers() { "$python" "$root/ci/check_layers.py" "$root"; }
check_headers() { "$python" "$root/ci/check_headers.py" "$root"; }

checks=("$@")
((${#checks[@]})) || checks=(format layers headers)
failed=()
for check in "${checks[@]}"; do
  case "$check" in
    format | layers | headers) "check_$check" || failed+=("$check") ;;
    -h | --help)
      sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "check: unknown check '$check'; known are format, layers, headers" >&2
      exit 2
      ;;
  esac
done
if ((${#failed[@]})); then
  echo "check: failed: ${failed[*]}" >&2
  exit 1
fi
