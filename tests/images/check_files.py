"""Checks the files of the images: `check_files.py ROOT LAYER`. LAYER is the archive, and ROOT has its content."""

from __future__ import annotations

import os
import stat
import sys
import tarfile
from pathlib import Path

# Where the build machine could leave logs, caches, names and identities.
CHANGING = ("etc", "tmp", "var", "run", "root", "home")
EXPECTED = {
    *("etc", "etc/group", "etc/nsswitch.conf", "etc/os-release", "etc/passwd", "etc/ssl", "etc/ssl/certs"),
    *("etc/ssl/certs/ca-certificates.crt", "tmp", "var", "var/lib", "var/lib/dpkg", "var/lib/dpkg/status.d"),
    *("var/lib/rollout", "var/lib/rollout-worker"),
}
CREATED = int(os.environ["SOURCE_DATE_EPOCH"])
WRITABLE = {"var/lib/rollout": 65532, "var/lib/rollout-worker": 65532}


def check_entry(entry: tarfile.TarInfo) -> None:
    name = entry.name.removeprefix("./")
    assert entry.isfile() or entry.isdir() or entry.issym() or entry.islnk(), f"{name} is a device or a pipe"
    assert entry.mtime <= CREATED, f"{name} is newer than the image"
    assert not entry.mode & (stat.S_ISUID | stat.S_ISGID), f"{name} gives its user other rights"
    owner = WRITABLE.get(name, 0)
    assert (entry.uid, entry.gid) == (owner, owner), f"{name} belongs to {entry.uid}:{entry.gid}"
    assert not entry.uname and not entry.gname or entry.uname == entry.gname == "root", f"{name} names its owner"
    if not entry.issym() and name != "tmp":
        assert not entry.mode & stat.S_IWOTH, f"everybody can write {name}"


def main(root: Path, layer: Path) -> None:
    with tarfile.open(layer) as archive:
        entries = archive.getmembers()
    for entry in entries:
        check_entry(entry)
    names = [entry.name.removeprefix("./") for entry in entries]
    assert len(names) == len(set(names)), "two entries have the same name"
    packages = {f"var/lib/dpkg/status.d/{path.name}" for path in (root / "var/lib/dpkg/status.d").iterdir()}
    changing = {name for name in names if name.split("/")[0] in CHANGING}
    assert changing == EXPECTED | packages, f"not expected: {sorted(changing ^ (EXPECTED | packages))}"
    certificates = (root / "etc/ssl/certs/ca-certificates.crt").read_text()
    assert certificates.count("BEGIN CERTIFICATE") > 100, "the list of certificate authorities is incomplete"
    size = sum(entry.size for entry in entries)
    print(f"-- {len(entries)} files, {size:,} bytes unpacked: nothing of this machine, no device, nothing setuid")


main(*map(Path, sys.argv[1:]))
