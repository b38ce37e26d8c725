# Shared by the scripts of this folder. Source it, do not run it.
#
# Sets root (the repository) and python (Debian's own, because ci/setup.sh installs its packages and another Python on PATH lacks
# them).

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
python=/usr/bin/python3
[[ -x $python ]] || python="$(command -v python3 || true)"

# The build folder of a preset of CMakePresets.json.
build_folder() {
  case "$1" in
    release) echo "$root/build" ;;
    debug | strict | asan | tsan | fuzz | kokkos4 | cuda-kernels | cuda) echo "$root/build-$1" ;;
    *) return 1 ;;
  esac
}

say() { printf '== %s\n' "$*" >&2; }

# One job per core, as far as memory allows: a translation unit that includes Kokkos needs about 1 GB.
build_jobs() {
  local cores memory_gb
  cores="$(nproc)"
  memory_gb="$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)"
  ((memory_gb >= 1)) || memory_gb=1
  echo $((cores < memory_gb ? cores : memory_gb))
}

# Prints the path of CUDA's compiler; fails where there is none.
find_nvcc() {
  local candidate
  for candidate in "${CUDA_ROOT:+$CUDA_ROOT/bin/nvcc}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [[ -n $candidate && -x $candidate ]] && readlink -f "$candidate" && return
  done
  return 1
}
