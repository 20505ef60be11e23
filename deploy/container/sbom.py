"""Writes the SBOM of the images or of a release to stdout, as CycloneDX JSON:

    sbom.py [--root ROOT] CARGO-LOCK CRATES VERSION COMMIT EXECUTABLE...

CRATES lists the crates whose code is in the executables: a line `NAME vVERSION|LICENSE` for each, as `cargo tree`
prints it. ROOT is the root of the images, with Debian's packages in var/lib/dpkg/status.d. The same input gives the
same bytes: there is no serial number, and the only time is SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import argparse
import datetime
import email.parser
import hashlib
import json
import os
import re
import sys
import tomllib
from pathlib import Path
from urllib.parse import quote


def purl(kind: str, name: str, version: str, **qualifiers: str) -> str:
    """The package URL: see the purl specification."""
    text = f"pkg:{kind}/{quote(name, safe='')}@{quote(version, safe='')}"
    more = "&".join(f"{key}={quote(value, safe='')}" for key, value in sorted(qualifiers.items()))
    return f"{text}?{more}" if more else text


def debian_licenses(copyright_file: Path) -> list[dict]:
    """The licenses that a machine-readable copyright file names, with Debian's short names."""
    text = copyright_file.read_text()
    if not text.startswith("Format:"):
        return []
    names = sorted(set(re.findall(r"^License: *(\S.*)$", text, re.M)))
    return [{"license": {"name": name}} for name in names]


def debian_packages(root: Path) -> list[dict]:
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', (root / "usr/lib/os-release").read_text(), re.M))
    distro = f"debian-{release['VERSION_ID']}"
    found = []
    for path in (root / "var/lib/dpkg/status.d").iterdir():
        control = email.parser.Parser().parsestr(path.read_text())
        name, version, arch = control["Package"], control["Version"], control["Architecture"]
        qualifiers = {"arch": arch, "distro": distro}
        # Vulnerabilities are listed by source package. Its version, if another one, follows in parentheses.
        if control["Source"]:
            qualifiers["upstream"] = re.sub(r" \((.*)\)", r"@\1", control["Source"])
        licenses = debian_licenses(root / f"usr/share/doc/{name}/copyright")
        found.append(component("deb/debian", name, version, licenses, qualifiers))
    return found


def crates(lock: Path, listed: Path) -> list[dict]:
    locked = tomllib.loads(lock.read_text())["package"]
    checksums = {(each["name"], each["version"]): each.get("checksum") for each in locked}
    found = {}
    # Empty lines separate the crates of different packages.
    for line in filter(None, listed.read_text().splitlines()):
        name, version, license = re.fullmatch(r"(\S+) v(\S+)[^|]*\|(.*?)(?: \(\*\))?", line).groups()
        # Cargo also permits the slash, which SPDX does not.
        licenses = [{"expression": re.sub(r" */ *", " OR ", license)}] if license else []
        crate = component("cargo", name, version, licenses, {})
        if checksum := checksums[name, version]:
            crate["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        found[name, version] = crate
    return list(found.values())


def component(kind: str, name: str, version: str, licenses: list[dict], qualifiers: dict[str, str]) -> dict:
    url = purl(kind, name, version, **qualifiers)
    found = {"type": "library", "bom-ref": url, "name": name, "version": version, "purl": url}
    return found | ({"licenses": licenses} if licenses else {})


def executable(path: Path, version: str, commit: str) -> dict:
    return {
        "type": "library" if path.suffix == ".so" else "application",
        "bom-ref": path.name,
        "name": path.name,
        "version": version,
        "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
        **({"pedigree": {"commits": [{"uid": commit}]}} if commit else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path)
    for name, kind in (("lock", Path), ("crates", Path), ("version", str), ("commit", str)):
        parser.add_argument(name, type=kind)
    parser.add_argument("executables", type=Path, nargs="+")
    args = parser.parse_args()
    time = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.UTC)
    libraries = crates(args.lock, args.crates) + (debian_packages(args.root) if args.root else [])
    whole = {"type": "container" if args.root else "application", "bom-ref": "all", "name": "rollout"}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": whole | {"version": args.version},
        },
        "components": [
            *(executable(path, args.version, args.commit) for path in args.executables),
            *sorted(libraries, key=lambda each: each["purl"]),
        ],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


main()
