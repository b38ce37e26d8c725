#!/usr/bin/env bash
# Builds a Kokkos with the backends Serial and Cuda under build/kokkos-cuda, for ci/build.sh cuda and cuda-kernels. Runs once: about 3
# minutes on two cores.
#
#   ci/kokkos_cuda.sh            the source is the Kokkos 4.7 that the Python package pygenten 0.1.5 contains
#
# $LOCKSTEP_CUDA_ARCH lists the architectures of GPUs in ascending order: of 80 (Ampere), 90 (Hopper) and 100 (Blackwell); 90 if unset.
# A program also runs on later GPUs than it is for, whose driver translates its kernels at the first start. Another list than
# that of the last build builds Kokkos anew.
#
# Two changes of the source make it compile with CUDA 13: nvcc_wrapper's default architecture, which nvcc no longer has, and two
# functions of the runtime with other parameters.
# Exit codes: 0 complete, 3 nvcc is missing, or the download or the build failed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

architectures="${LOCKSTEP_CUDA_ARCH:-90}"
archive=pygenten-0.1.5.tar.gz
installed="$root/build/kokkos-cuda"
work="$root/build/kokkos-cuda-work"

fail() {
  echo "kokkos_cuda: $*" >&2
  exit 3
}

case "$architectures" in
  80 | 80,90 | 80,100 | 80,90,100) option=AMPERE80 ;;
  90 | 90,100) option=HOPPER90 ;;
  100) option=BLACKWELL100 ;;
  *) fail "LOCKSTEP_CUDA_ARCH is '$architectures'; it may be 80, 90, 100, or several in this order: 80,90,100" ;;
esac
[[ -e $installed/complete-$architectures ]] && exit 0
nvcc="$(find_nvcc)" || fail "no nvcc on PATH, in \$CUDA_ROOT/bin or in /usr/local/cuda/bin: install the CUDA toolkit, version 12 or 13"

rm -rf "$work" "$installed"
mkdir -p "$work"
say "fetching the source of Kokkos 4.7"
"$python" -m venv "$work/python" && "$work/python/bin/pip" download -q --no-deps --no-binary pygenten -d "$work" pygenten==0.1.5 >&2 ||
  fail "pip could not download the source distribution of pygenten 0.1.5; see above"
tar xzf "$work/$archive" -C "$work" --strip-components=3 pygenten-0.1.5/tpls/kokkos --one-top-level=kokkos
source_folder="$work/kokkos"

# A Kokkos has one architecture. nvcc adds code for the others.
first="${architectures%%,*}" others=""
for each in ${architectures//,/ }; do
  [[ $each == "$first" ]] || others+=" -gencode arch=compute_$each,code=sm_$each"
done
sed -i "s/^default_arch=.*/default_arch=\"sm_$first\"/" "$source_folder/bin/nvcc_wrapper"
instance="$source_folder/core/src/Cuda/Kokkos_Cuda_Instance.hpp"
changed() { # OLD NEW: both in one line of the file, which contains OLD once
  [[ $(grep -cF "$1" "$instance") == 1 ]] || fail "$instance does not contain '$1' once"
  sed -i "s|$1|\\n#if CUDART_VERSION >= 13000\\n    $2\\n#else\\n    $1\\n#endif\\n|" "$instance"
}
changed "return cudaGraphAddDependencies(graph, from, to, numDependencies);" \
  "return cudaGraphAddDependencies(graph, from, to, nullptr, numDependencies);"
changed "return cudaMemPrefetchAsync(devPtr, count, dstDevice, m_stream);" \
  "return cudaMemPrefetchAsync(devPtr, count, {cudaMemLocationTypeDevice, dstDevice}, 0, m_stream);"

say "building Kokkos with Cuda for sm_${architectures//,/ sm_}"
export CUDA_ROOT="${nvcc%/bin/nvcc}" NVCC_APPEND_FLAGS="$others"
unset CMAKE_CXX_COMPILER_LAUNCHER # a cache would not see those flags
{
  cmake -S "$source_folder" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$installed" \
    -DCMAKE_CXX_COMPILER="$source_folder/bin/nvcc_wrapper" -DCMAKE_CXX_STANDARD=20 -DCMAKE_CXX_EXTENSIONS=OFF \
    -DKokkos_ENABLE_SERIAL=ON -DKokkos_ENABLE_CUDA=ON -DKokkos_ARCH_$option=ON \
    -DKokkos_ENABLE_DEPRECATED_CODE_4=OFF -DCUDAToolkit_ROOT="$CUDA_ROOT" &&
    ninja -C "$work/build" -j "${LOCKSTEP_JOBS:-$(build_jobs)}" install
} >"$work/build.log" 2>&1 || {
  tail -n 60 "$work/build.log" >&2
  fail "Kokkos did not build; the whole log is $work/build.log"
}
rm -rf "$work/build" "$work/python"
touch "$installed/complete-$architectures"
