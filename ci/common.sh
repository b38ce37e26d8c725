# Shared by the scripts of this folder; to be sourced, not run.
#
# Sets: root (the repository), python (Debian's own, whose packages ci/setup.sh installs; another python first on PATH would
# not see them).

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python=/usr/bin/python3
[[ -x $python ]] || python="$(command -v python3 || true)"

# Where a preset of CMakePresets.json builds.
build_folder() {
  case "$1" in
    release) echo "$root/build" ;;
    debug | strict | asan | tsan | kokkos4) echo "$root/build-$1" ;;
    *) return 1 ;;
  esac
}

say() { printf '== %s\n' "$*" >&2; }

# One job a core, but no more than memory allows: a translation unit that includes Kokkos takes about 1 GB.
build_jobs() {
  local cores memory_gb
  cores="$(nproc)"
  memory_gb="$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)"
  ((memory_gb >= 1)) || memory_gb=1
  echo $((cores < memory_gb ? cores : memory_gb))
}
