#!/usr/bin/env bash
# From a bare Debian 12 to an answer: installs what is missing, builds ns-dist and runs it with the arguments given.
#   ./quickstart.sh --model gpt3-175b --gpu H100 --tp 8 --pp 16 --dp 8
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/tools/setup.sh"
binary=$root/build/release/bin/ns-dist

# A checkout built by someone else, which we may use but not change.
if [[ -x $binary && ! -w $root/build/release ]]; then exec "$binary" "$@"; fi

exec 9>"$root/build/.lock"
command -v flock >/dev/null && flock 9  # several forecasts may be started at once
need "${build_needs[@]}"
configure release
build release ns-dist
exec "$binary" "$@" 9>&-
