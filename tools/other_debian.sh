#!/usr/bin/env bash
# Does the last commit build, and pass its tests, with the compiler and the libraries of another Debian release?
#
#   tools/other_debian.sh RELEASE [ctest arguments]     as root: trixie, sid
#   MIRROR=URL FOLDER=DIR tools/other_debian.sh trixie  where packages come from, and where the system is kept
#
# Takes the release's packages into FOLDER (default: /var/tmp/ns-dist-systems) with debootstrap and runs ./test.sh in
# it. A second run goes on from the first one's build.
set -euo pipefail
case ${1-} in
  '' | -*)
    sed -n '/^#   /s/^# *//p' "$0"
    if [[ ${1-} == --help ]]; then exit 0; else exit 2; fi
    ;;
esac
release=$1
shift
root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
system=${FOLDER:-/var/tmp/ns-dist-systems}/$release
source=$system/root/ns-dist

if [[ ! -x $system/usr/bin/apt-get ]]; then
  mkdir -p "$system"
  debootstrap --variant=minbase --include=ca-certificates,git "$release" "$system" ${MIRROR:+"$MIRROR"}
fi
cp /etc/resolv.conf /etc/hosts "$system/etc/"
if [[ ! -d $source ]]; then git init -q "$source"; fi
git -C "$source" fetch -q "$root" HEAD
git -C "$source" reset -q --hard FETCH_HEAD

leave() { umount "$system/proc" "$system/dev"; }
trap leave EXIT
for folder in proc dev; do mount --bind "/$folder" "$system/$folder"; done
chroot "$system" /root/ns-dist/test.sh "$@"
