# shellcheck shell=bash disable=SC2034
# Shared by quickstart.sh and test.sh: installs what the build needs, configures a preset, builds targets.
# Everything here speaks on stderr, so that standard output belongs to the program that is started in the end.

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
log=$root/build/setup.log

# Debian package and a file that tells its presence. Looking at files costs no process, and holds on other systems too.
build_needs=(
  g++:bin/g++
  cmake:bin/cmake
  ninja-build:bin/ninja
  protobuf-compiler:bin/protoc
  libboost-dev:include/boost/version.hpp
  libcli11-dev:include/CLI/CLI.hpp
  libeigen3-dev:include/eigen3/Eigen/Core
  libexpected-dev:include/tl/expected.hpp
  libfmt-dev:include/fmt/core.h
  libprotobuf-dev:include/google/protobuf/message.h
  nlohmann-json3-dev:include/nlohmann/json.hpp
  zlib1g-dev:include/zlib.h
)
test_needs=(
  libbenchmark-dev:include/benchmark/benchmark.h
  libgmock-dev:include/gmock/gmock.h
  libgtest-dev:include/gtest/gtest.h
  librapidcheck-dev:include/rapidcheck.h
  libopenmpi-dev:bin/mpicxx
  openmpi-bin:bin/mpirun
)

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "error: $*"
  exit 1
}

# run_phase TEXT COMMAND...: one line for people, at once or, where lazy is set, at the first line that matches it. What
# the command prints goes to the log, its last line to a terminal, and its end to everybody when it fails.
run_phase() {
  local text=$1 line done='' status=0
  shift
  if [[ -z ${lazy-} ]]; then say "$text"; fi
  "$@" 2>&1 </dev/null 9>&- | while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ -n ${lazy-} && -z $done && $line =~ $lazy ]]; then
      say "$text"
      done=yes
    fi
    if [[ -t 2 ]]; then printf '\r\033[K  %.100s' "$line" >&2; fi
  done >"$log" || status=$?
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
  if ((status != 0)); then
    say "failed: $*"
    tail -n 25 "$log" | cut -c -200 | sed 's/^/  | /' >&2
    fail "the step before did not succeed. Its whole log: $log"
  fi
}

# need PACKAGE:FILE...: installs the Debian packages whose file is in neither /usr nor /usr/local.
need() {
  local entry packages=() as_root=()
  for entry in "$@"; do
    if [[ ! -e /usr/${entry#*:} && ! -e /usr/local/${entry#*:} ]]; then packages+=("${entry%%:*}"); fi
  done
  if ((${#packages[@]} == 0)); then return 0; fi

  if ! command -v apt-get >/dev/null; then
    fail "these libraries or tools are missing, and there is no apt-get to install them. Debian calls them:
  ${packages[*]}"
  fi
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      fail "some packages are missing, and installing them takes root. Please run, as root:
  apt-get update && apt-get install --no-install-recommends ${packages[*]}"
    fi
    say "Installing packages takes root: sudo may ask for your password."
    sudo true || fail "no root rights. Packages to install: ${packages[*]}"
    as_root=(sudo)
  fi
  run_phase "Installing ${#packages[@]} packages: ${packages[*]}" install_packages
}

install_packages() {
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Acquire::Retries=3
    -o DPkg::Lock::Timeout=300) try
  for try in 1 2 3; do
    # A failed update may leave lists that are good enough; the install decides.
    "${apt[@]}" update || true
    if "${apt[@]}" install --no-install-recommends "${packages[@]}"; then return 0; fi
    sleep $((try * 5))
  done
  return 1
}

# build PRESET TARGET...: silent when nothing has changed.
build() {
  local preset=$1
  shift
  lazy='^\[[1-9]' run_phase "Building $preset: a few minutes the first time" ninja -C "$root/build/$preset" "$@"
}

# configure PRESET: configures build/PRESET unless that was done here with these presets. Ninja sees to later changes.
configure() {
  local stamp=$root/build/$1/.configured place=''
  if [[ -e $stamp && $stamp -nt $root/CMakePresets.json ]]; then read -r place <"$stamp" || true; fi
  if [[ $place != "$root" ]]; then
    run_phase "Configuring (preset $1)" cmake --fresh -S "$root" --preset "$1"
    printf '%s\n' "$root" >"$stamp"
  fi
}

mkdir -p "$root/build" 2>/dev/null || [[ -d $root/build ]] || fail "cannot create $root/build"
