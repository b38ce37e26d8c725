#!/usr/bin/env bash
# Installs missing Debian 12 packages; does nothing if none is missing.
#
#   ci/setup.sh            packages of the program and its reports
#   ci/setup.sh --tests    and those of the tests
#   ci/setup.sh --bench    and Google Benchmark, for ci/bench.sh operations
#   ci/setup.sh --fuzz     and clang with libFuzzer, for ci/fuzz.sh
#   ci/setup.sh --kokkos4  and a Kokkos 4 with OpenMP under build/, from a Python wheel that contains it
#   ci/setup.sh --cuda     and the package that ci/kokkos_cuda.sh needs
#   ci/setup.sh --list     print the packages, one per line, and install nothing (with --tests: all of them)
#
# LOCKSTEP_SKIP_SETUP=1 installs and checks nothing, for machines with the libraries from another source.
# Exit codes: 0 complete, 2 usage, 3 a package is missing and cannot be installed (the needed command is printed).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

packages=(
  g++ cmake ninja-build
  libtrilinos-kokkos-dev libopenblas-pthread-dev libdnnl-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libfmt-dev
  libspdlog-dev libpugixml-dev libxxhash-dev libtcmalloc-minimal4
  python3-matplotlib python3-jinja2
)
# chromium: a test opens the page in a browser. Open MPI and iproute2: runs on several hosts. The program builds without MPI.
# python3-clang-14: the syntax trees of ci/mutants.sh.
test_packages=(
  libgtest-dev libgmock-dev python3-pytest clang-format clang-tidy chromium openmpi-bin libopenmpi-dev iproute2 procps
  python3-clang-14
)

list_only=false
kokkos4=false
for argument in "$@"; do
  case "$argument" in
    --tests) packages+=("${test_packages[@]}") ;;
    --bench) packages+=(libbenchmark-dev) ;;
    --fuzz) packages+=(clang libclang-rt-14-dev) ;;
    --cuda) packages+=(python3-venv) ;;
    --list) list_only=true ;;
    --kokkos4)
      packages+=(python3-venv)
      kokkos4=true
      ;;
    -h | --help)
      sed -n '2,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
      exit 0
      ;;
    *)
      echo "setup: unknown argument '$argument'; see ci/setup.sh --help" >&2
      exit 2
      ;;
  esac
done

if $list_only; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

# The preset kokkos4 expects build/kokkos4. The fetch runs once; an interrupted fetch leaves no link.
fetch_kokkos4() {
  local environment="$root/build/kokkos4-python" found
  [[ -e $root/build/kokkos4/lib64/cmake/Kokkos/KokkosConfig.cmake ]] && return
  say "fetching Kokkos 4"
  "$python" -m venv "$environment" && "$environment/bin/pip" install -q --no-deps pygenten==0.1.5 || {
    echo "setup: pip could not install pygenten 0.1.5, which holds Kokkos 4.7; see above" >&2
    exit 3
  }
  found="$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')/pygenten"
  ln -sfn "$found" "$root/build/kokkos4"
}
finish() {
  if $kokkos4; then fetch_kokkos4; fi
  exit 0
}

if [[ ${LOCKSTEP_SKIP_SETUP:-} == 1 ]]; then finish; fi
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  {
    echo "setup: this is not Debian. Lockstep needs the contents of these Debian 12 packages:"
    printf '  %s\n' "${packages[@]}"
    echo "Install their equivalents, set LOCKSTEP_SKIP_SETUP=1, and run the same command again."
  } >&2
  exit 3
fi

# dpkg-query fails on an unknown package; its output still lists the others.
installed="$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)"
missing=()
for package in "${packages[@]}"; do
  [[ $'\n'"$installed"$'\n' == *$'\n'"installed $package"$'\n'* ]] || missing+=("$package")
done
((${#missing[@]})) || finish

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if ((EUID == 0)); then
  as_root=(env)
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [[ -t 0 ]]; }; then
  as_root=(sudo env)
else
  echo "setup: packages are missing, and this is neither root nor a user of sudo. As root:" >&2
  echo "  apt-get update && ${install[*]}" >&2
  exit 3
fi

say "installing ${missing[*]}"
{
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" DEBIAN_FRONTEND=noninteractive "${install[@]}"
} >&2 || {
  echo "setup: apt could not install them; see above. The command was: ${install[*]}" >&2
  exit 3
}
finish
