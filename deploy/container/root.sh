#!/usr/bin/env bash
# Completes the root of the images after mmdebstrap has unpacked the packages into it; build.sh has mmdebstrap run this:
#   root.sh ROOT PROGRAMS WORK
# WORK has `crates`, the list for the SBOM, and `THIRD-PARTY-LICENSES`. Adds `version`, what PROGRAMS prints, and
# `rollout.cdx.json`, the SBOM.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$1" programs="$2" work="$3"
[ "$(realpath "$root")" != / ] || { echo "root.sh: / is the root of this machine" >&2; exit 1; }

# Of these two, the images contain files only: whole, they would need openssl, Perl and awk.
mkdir "$work/debs" "$work/files"
mv "$root"/var/cache/apt/archives/*.deb "$work/debs/"
(
  cd "$work/debs"
  APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -qq -o APT::Sandbox::User=root download base-files ca-certificates
)
for package in base-files ca-certificates; do
  dpkg-deb -x "$work/debs/$package"_*.deb "$work/files"
done

# Keep only what the programs use, and the licenses. /etc, /tmp and /var have files of this machine, caches and logs;
# gconv converts character sets.
rm -rf "${root:?}"/etc "${root:?}"/var "${root:?}"/usr/lib/*/gconv
find "$root/tmp" -mindepth 1 -delete
find "$root/usr/share" -mindepth 1 -maxdepth 1 ! -name doc -exec rm -rf {} +
for package in base-files ca-certificates; do
  install -D -m 644 "$work/files/usr/share/doc/$package/copyright" -t "$root/usr/share/doc/$package"
done
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type d -empty -delete

mkdir -p "$root/etc/ssl/certs"
# What update-ca-certificates does: every certificate, and a line feed after one that has none.
for certificate in "$work"/files/usr/share/ca-certificates/mozilla/*.crt; do
  # shellcheck disable=SC1003 # sed's own syntax
  sed -e '$a\' "$certificate"
done >"$root/etc/ssl/certs/ca-certificates.crt"
install -m 644 "$work/files/usr/lib/os-release" "$root/usr/lib/os-release"
ln -s ../usr/lib/os-release "$root/etc/os-release"
printf '%s\n' root:x:0:0:root:/root:/usr/sbin/nologin \
  rollout:x:65532:65532::/nonexistent:/usr/sbin/nologin >"$root/etc/passwd"
printf '%s\n' root:x:0: rollout:x:65532: >"$root/etc/group"
# Without this file, glibc asks DNS before /etc/hosts.
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
# A new volume that is mounted there gets the owner and the mode.
install -d -o 65532 -g 65532 -m 700 "$root/var/lib/rollout" "$root/var/lib/rollout-worker"

# The chart's backups run a shell, and so do restores, whose pods sleep. This shell contains its commands.
for name in sh sleep; do ln -s busybox "$root/bin/$name"; done
install -s -m 755 "$programs" "$root/usr/bin/rollout-programs"
for name in rollout rolloutctl rollout-worker rollout-coordinator; do
  ln -s rollout-programs "$root/usr/bin/$name"
done
# This fails if a library is missing or too old.
chroot "$root" /usr/bin/rollout-programs --version | tr -d '()' >"$work/version"

# One file per package, which vulnerability scanners read where there is no dpkg.
mkdir -p "$root/var/lib/dpkg/status.d"
for deb in "$work"/debs/*.deb; do
  dpkg-deb --field "$deb" >"$root/var/lib/dpkg/status.d/$(dpkg-deb --field "$deb" Package)"
done
read -r _ version commit <"$work/version"
python3 "$here/sbom.py" --root "$root" "$here/../../Cargo.lock" "$work/crates" "$version" "$commit" \
  "$root/usr/bin/rollout-programs" >"$work/rollout.cdx.json"
install -D -m 644 "$work/rollout.cdx.json" "$work/THIRD-PARTY-LICENSES" "$here"/../../LICENSE-* \
  -t "$root/usr/share/doc/rollout"
