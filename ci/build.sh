#!/usr/bin/env bash
# Configures once, and builds.
#
#   ci/build.sh [release|debug|strict|asan|tsan|fuzz|kokkos4|cuda-kernels|cuda] [TARGET...]      default: release, target lockstep
#
# The program is then build/bin/lockstep (build-PRESET/bin/lockstep for the other presets). The target `tests`
# is every unit test. LOCKSTEP_JOBS sets the number of compilers at once. `cuda-kernels` compiles and links the
# kernels and their tests with nvcc, after ci/kokkos_cuda.sh; it runs nothing. `cuda` is the program with the cuda device,
# against the Kokkos in $Kokkos_ROOT, which has Cuda, or else the one of ci/kokkos_cuda.sh. LOCKSTEP_CUDA_ARCH=80,90,100 makes
# kernels for several architectures.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  -h | --help)
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
    ;;
esac

preset=release
if [[ $# -gt 0 ]] && build_folder "$1" >/dev/null; then
  preset="$1"
  shift
fi
folder="$(build_folder "$preset")"
targets=("$@")
options=()
if [[ $preset == cuda && -n ${Kokkos_ROOT:-} ]]; then
  options=("-DKokkos_ROOT=$Kokkos_ROOT")
elif [[ $preset == cuda ]]; then
  options=("-DKokkos_DIR=$root/build/kokkos-cuda/lib/cmake/Kokkos")
fi
architectures="${LOCKSTEP_CUDA_ARCH:-}" # empty: that of Kokkos
[[ $preset != cuda* ]] || options+=("-DLOCKSTEP_CUDA_ARCHITECTURES=${architectures//,/;}")
if [[ $preset == cuda-kernels || $preset == cuda ]]; then
  [[ ${options[*]} == *Kokkos_ROOT* ]] || "$root/ci/kokkos_cuda.sh"
  nvcc="$(find_nvcc)" && export CUDA_ROOT="${nvcc%/bin/nvcc}"
  ((${#targets[@]})) || [[ $preset == cuda ]] || targets=(kernels_tests device_tests lockstep_comm)
fi
((${#targets[@]})) || targets=(lockstep)

# Two builds in one folder would corrupt each other's files: the second waits.
mkdir -p "$folder"
exec 9>"$folder/.build.lock"
flock 9

# The program alone builds without GoogleTest and Google Benchmark. A target that needs one of them declares it, permanently for
# this folder.
is_on() { grep -qs "^$1:BOOL=ON" "$folder/CMakeCache.txt" && echo ON || echo OFF; }
declared="$(is_on LOCKSTEP_TESTS) $(is_on LOCKSTEP_BENCHMARKS)"
[[ -e $folder/build.ninja ]] || declared="OFF OFF"
read -r tests benchmarks <<<"$declared"
for target in "${targets[@]}"; do
  case "$target" in
    tests | *_tests) tests=ON ;;
    *_benchmarks) benchmarks=ON ;;
  esac
done
if [[ $preset == cuda* ]] && ! grep -qs "^LOCKSTEP_CUDA_ARCHITECTURES:STRING=${architectures//,/;}\$" "$folder/CMakeCache.txt"; then
  declared="other architectures"
fi
if [[ ! -e $folder/build.ninja || "$tests $benchmarks" != "$declared" ]]; then
  say "configuring $preset"
  cmake -S "$root" --preset "$preset" -DLOCKSTEP_TESTS=$tests -DLOCKSTEP_BENCHMARKS=$benchmarks "${options[@]}" \
    >"${folder}.configure.log" 2>&1 9>&- || {
    cat "${folder}.configure.log" >&2
    rm -f "${folder}.configure.log"
    exit 3
  }
  rm -f "${folder}.configure.log"
fi

log="$folder/build.log"
jobs="${LOCKSTEP_JOBS:-$(build_jobs)}"
if [[ -t 2 ]]; then
  ninja -C "$folder" -j "$jobs" "${targets[@]}" >&2 9>&-
else
  # No output on success; the whole log on failure.
  ninja -C "$folder" -j "$jobs" "${targets[@]}" >"$log" 2>&1 9>&- || {
    cat "$log" >&2
    exit 3
  }
fi
