"""Writes THIRD-PARTY-LICENSES to stdout: the license texts of the code that the programs and the wheel contain:

    licenses.py

They come from the sources of the linked crates, with the C and C++ libraries in them, and from the Rust toolchain.
Fails if a crate has none. The bytes depend only on Cargo.lock, the toolchain and the target. Needs cargo and rustc.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("coordinator", "worker", "ctl", "programs", "python")
NAMES = re.compile(r"(?i)(un)?licen[cs]e|copying|copyright|notice|authors")
CODE = {".c", ".h", ".html", ".json", ".py", ".rs", ".sh", ".toml", ".yml"}
# The licenses of tools and tests in the sources, and alternatives that we do not choose. deny.toml permits no copyleft.
COPYLEFT = re.compile(r"(?i)GNU (\w+ )?General Public License|\bA?GPL")
# License texts that are only comments of a source.
COMMENTS = {
    "librocksdb-sys": ("rocksdb/util/crc32c.cc", "rocksdb/util/xxhash.h", "rocksdb/util/xxph3.h"),
    "tonic-prost": ("src/codec.rs",),
}
COMMENT = re.compile(r"/\*(?s:.*?)\*/|(?:^//.*\n)+", re.M)
RULE = "=" * 100


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked() -> list[tuple[str, str, str]]:
    """Name, version and license of each crate from a registry."""
    packages = [argument for name in PACKAGES for argument in ("-p", f"rollout-{name}")]
    options = ("-e", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}|{l}")
    lines = re.findall(r"^(\S+) v([^ |]+)\|(.*?)(?: \(\*\))?$", run("cargo", "tree", "--locked", *packages, *options), re.M)
    return sorted(set(lines))


def texts(folder: Path, name: str, license: str) -> list[tuple[str, str]]:
    """The files of a crate that have licenses or notices, and their content."""
    paths = [path for path in folder.rglob("*") if NAMES.match(path.name) and path.suffix not in CODE and path.is_file()]
    files = [(path.relative_to(folder).as_posix(), path.read_text("utf-8", "replace")) for path in sorted(paths)]
    found = [(file, text) for file, text in files if not COPYLEFT.search(text[:400])]
    for file in COMMENTS.get(name, ()):
        comments = [each for each in COMMENT.findall((folder / file).read_text("utf-8", "replace")) if "opyright" in each]
        found.append((file, "\n\n".join(comments)))
    if all(re.search(r"(?i)\b(notice|authors)\b", file) for file, _ in found):
        if "Apache-2.0" not in re.split(r" OR | */ *", license):
            sys.exit(f"licenses: {folder.name} has no license text")
        found.append(("Apache-2.0, chosen from its metadata", (ROOT / "LICENSE-APACHE").read_text()))
    return found


def standard_library(sysroot: str) -> str:
    page = (Path(sysroot) / "share/doc/rust/COPYRIGHT-library.html").read_text("utf-8")
    return re.sub(r"\n\s*\n", "\n\n", html.unescape(re.sub(r"<[^>]*>", "", page)))


def main() -> None:
    sysroot, host = run("rustc", "--print", "sysroot", "--print", "host-tuple").split()
    metadata = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host))
    folders = {(each["name"], each["version"]): Path(each["manifest_path"]).parent for each in metadata["packages"]}
    # Many crates have the same text, with other spaces.
    users: dict[str, list[str]] = {}
    originals: dict[str, str] = {}
    for name, version, license in linked():
        for file, text in texts(folders[name, version], name, license):
            key = " ".join(text.split())
            originals.setdefault(key, text)
            users.setdefault(key, []).append(f"{name} {version}: {file}")
    users["std"], originals["std"] = ["Rust's standard library"], standard_library(sysroot)
    sys.stdout.reconfigure(encoding="utf-8")
    print("Licenses of the third-party code in rollout. Above each text: the crates that it is for, and the files it is from.")
    for key, names in users.items():
        lines = (line.rstrip() for line in originals[key].replace("\f", "").strip().splitlines())
        print(RULE, *names, "", *lines, sep="\n")


main()
