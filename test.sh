#!/usr/bin/env bash
# From a bare Debian 12 to tested: installs what is missing, builds everything with warnings as errors, runs all tests.
# Arguments go to ctest:  ./test.sh -L unit
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/setup.sh"

need "${build_needs[@]}" "${test_needs[@]}"
configure dev
build dev all
say "Testing"
exec ctest --test-dir "$root/build/dev" --output-on-failure --no-tests=error --parallel "$(nproc)" "$@"
