"""Checks an SBOM against the executables that it describes:

    check_sbom.py --licenses LICENSES [--root ROOT] [--schemas SCHEMAS] SBOM CARGO-LOCK EXECUTABLE...

LICENSES has the license texts of the crates. ROOT has the files of the images, for their SBOM. SCHEMAS is the folder
with the schemas of CycloneDX.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tomllib
import warnings
from pathlib import Path

PACKAGES = {"base-files", "busybox-static", "ca-certificates", "libc6", "libgcc-s1", "libstdc++6"}
CRATES = {"openraft", "rocksdb", "librocksdb-sys", "rustls", "tokio", "tikv-jemalloc-sys", "rollout-ledger"}
# Crates of the build, of tests, and of macros: their code is not in the executable.
OUTSIDE = {"bindgen", "cc", "proptest", "prost-build", "serde_derive", "rollout-jepsen", "rollout-tests", "xtask"}


def check_schema(document: dict, schemas: Path) -> None:
    import jsonschema

    def read(name: str) -> dict:
        return json.loads((schemas / f"{name}.SNAPSHOT.schema.json").read_text())

    schema = read("bom-1.6")
    others = {each["$id"]: each for each in map(read, ("spdx", "jsf-0.82"))}
    with warnings.catch_warnings():
        # Newer versions of jsonschema have another way, which Debian's does not have.
        warnings.simplefilter("ignore", DeprecationWarning)
        resolver = jsonschema.RefResolver(schema["$id"], schema, store={schema["$id"]: schema} | others)
    jsonschema.Draft7Validator(schema, resolver=resolver).validate(document)


def check_packages(packages: dict[str, str], root: Path) -> None:
    found = {}
    for path in (root / "var/lib/dpkg/status.d").iterdir():
        (found[path.name],) = re.findall(r"^Version: (.*)$", path.read_text(), re.M)
    assert packages == found, f"Debian's packages are not those of the image: {packages.items() ^ found.items()}"
    assert packages.keys() >= PACKAGES, f"not there: {PACKAGES - packages.keys()}"


def check_crates(crates: dict[tuple[str, str], dict], lock: dict, executables: list[bytes]) -> int:
    locked = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    for crate, component in crates.items():
        hashes = [each["content"] for each in component.get("hashes", [])]
        assert hashes == [locked[crate]] or (locked[crate] is None and not hashes), f"not as in Cargo.lock: {crate}"
        assert component.get("licenses"), f"no license: {crate}"
    names = {name for name, _ in crates}
    assert names >= CRATES, f"not there: {CRATES - names}"
    assert not names & OUTSIDE, f"not in an executable: {names & OUTSIDE}"
    # The messages of panics contain the paths of the sources.
    pattern = re.compile(rb"/registry/src/[^/\0]+/([\w-]+?)-(\d+\.\d+\.\d+[\w.+-]*)/")
    paths = {found for each in executables for found in pattern.findall(each)}
    seen = {(name.decode(), version.decode()) for name, version in paths}
    assert len(seen) > 100, f"the executables name only {len(seen)} crates"
    assert seen <= crates.keys(), f"in an executable, but not in the SBOM: {seen - crates.keys()}"
    return len(seen)


def check_licenses(crates: dict[tuple[str, str], dict], text: str) -> None:
    ours = {name for name, _ in crates if name.startswith("rollout-")}
    missing = {(name, version) for name, version in crates if f"\n{name} {version}: " not in text and name not in ours}
    assert not missing, f"no license text: {missing}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", type=Path)
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--licenses", type=Path, required=True)
    for name in ("sbom", "lock"):
        parser.add_argument(name, type=Path)
    parser.add_argument("executables", type=Path, nargs="+")
    args = parser.parse_args()
    text = args.sbom.read_text()
    document = json.loads(text)
    if args.schemas:
        check_schema(document, args.schemas)
    components = document["components"]

    def of_kind(kind: str) -> list[dict]:
        return [each for each in components if each.get("purl", "").startswith(f"pkg:{kind}/")]

    contents = [path.read_bytes() for path in args.executables]
    files = [(each["name"], each["hashes"][0]["content"]) for each in components if "purl" not in each]
    actual = zip((path.name for path in args.executables), (hashlib.sha256(each).hexdigest() for each in contents))
    assert files == list(actual), f"other executables: {files}"
    packages = {each["name"]: each["version"] for each in of_kind("deb")}
    crates = {(each["name"], each["version"]): each for each in of_kind("cargo")}
    assert len(components) == len(packages) + len(crates) + len(files), "a component is there twice, or of another kind"
    if args.root:
        assert (args.root / "usr/share/doc/rollout/rollout.cdx.json").read_text() == text, "the images have another SBOM"
        check_packages(packages, args.root)
    seen = check_crates(crates, tomllib.loads(args.lock.read_text()), contents)
    check_licenses(crates, args.licenses.read_text())
    print(f"-- SBOM: {len(packages)} Debian packages, {len(crates)} crates; all {seen} that the executables name are there")


main()
