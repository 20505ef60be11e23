"""Checks the SBOM of the images: `check_sbom.py ROOT SBOM CARGO-LOCK SCHEMAS`. ROOT has the files of the images.
SCHEMAS is the folder with the schemas of CycloneDX, or empty."""

from __future__ import annotations

import hashlib
import json
import re
import sys
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


def check_crates(crates: dict[tuple[str, str], dict], lock: dict, executable: bytes) -> int:
    locked = {(each["name"], each["version"]): each.get("checksum") for each in lock["package"]}
    for crate, component in crates.items():
        hashes = [each["content"] for each in component.get("hashes", [])]
        assert hashes == [locked[crate]] or (locked[crate] is None and not hashes), f"not as in Cargo.lock: {crate}"
        assert component.get("licenses"), f"no license: {crate}"
    names = {name for name, _ in crates}
    assert names >= CRATES, f"not there: {CRATES - names}"
    assert not names & OUTSIDE, f"not in the executable: {names & OUTSIDE}"
    # The messages of panics contain the paths of the sources.
    paths = set(re.findall(rb"/registry/src/[^/\0]+/([\w-]+?)-(\d+\.\d+\.\d+[\w.+-]*)/", executable))
    seen = {(name.decode(), version.decode()) for name, version in paths}
    assert len(seen) > 100, f"the executable names only {len(seen)} crates"
    assert seen <= crates.keys(), f"in the executable, but not in the SBOM: {seen - crates.keys()}"
    return len(seen)


def main(root: Path, bom: Path, lock: Path, schemas: str) -> None:
    text = bom.read_text()
    assert (root / "usr/share/doc/rollout/rollout.cdx.json").read_text() == text, "the images have another SBOM"
    document = json.loads(text)
    if schemas:
        check_schema(document, Path(schemas))
    components = document["components"]
    executable = (root / "usr/bin/rollout-programs").read_bytes()
    (program,) = [each for each in components if each["name"] == "rollout-programs" and each["type"] == "application"]
    assert program["hashes"][0]["content"] == hashlib.sha256(executable).hexdigest(), "another executable"

    def of_kind(kind: str) -> list[dict]:
        return [each for each in components if each.get("purl", "").startswith(f"pkg:{kind}/")]

    packages = {each["name"]: each["version"] for each in of_kind("deb")}
    crates = {(each["name"], each["version"]): each for each in of_kind("cargo")}
    assert len(components) == len(packages) + len(crates) + 1, "a component is there twice, or of another kind"
    check_packages(packages, root)
    seen = check_crates(crates, tomllib.loads(lock.read_text()), executable)
    print(f"-- SBOM: {len(packages)} packages, {len(crates)} crates; all {seen} that the executable names are there")


main(*map(Path, sys.argv[1:4]), sys.argv[4])
