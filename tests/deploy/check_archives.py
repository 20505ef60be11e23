"""Checks release/archives.sh, which packs the programs of a release, with small programs in C instead; and
release/licenses.py, which writes the licenses of the linked crates.

    check_archives.py
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zlib

RELEASE = pathlib.Path(__file__).resolve().parents[2] / "release"
SCRIPT = RELEASE / "archives.sh"
# Words of every license that lets others copy the work.
GRANT = re.compile(r"(?i)permission to use|permission is (hereby )?granted|grants|redistribution and use|may use, modify")
PROGRAMS = ("rollout", "rolloutctl", "rollout-coordinator", "rollout-worker")
NAME = "rollout-0.2.0-target"
SECONDS = 1_700_000_000


def run(*command):
    subprocess.run([str(each) for each in command], check=True, capture_output=True)


class Archives(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.work = pathlib.Path(temporary.name)
        self.programs = self.work / "programs"
        self.programs.mkdir()
        source = self.work / "main.c"
        source.write_text("int main(void) { return 0; }\n")
        for program in PROGRAMS:
            run("cc", "-g", source, "-o", self.programs / program)

    def pack(self, folder, seconds=SECONDS):
        """The two archives: with the programs, and with their debug information."""
        run("bash", SCRIPT, self.programs, NAME, seconds, self.work / folder)
        return self.work / folder / f"{NAME}.tar.gz", self.work / folder / f"{NAME}-debug.tar.gz"

    def test_they_have_the_programs_the_licenses_and_the_debug_information(self):
        programs, debug = ({one.name: one for one in tarfile.open(path).getmembers()} for path in self.pack("out"))
        modes = {NAME: 0o755, f"{NAME}/LICENSE-APACHE": 0o644, f"{NAME}/LICENSE-MIT": 0o644}
        modes[f"{NAME}/THIRD-PARTY-LICENSES"] = 0o644
        modes |= {f"{NAME}/{program}": 0o755 for program in PROGRAMS}
        self.assertEqual({name: one.mode for name, one in programs.items()}, modes)
        self.assertEqual(set(debug), {NAME, *(f"{NAME}/{program}.debug" for program in PROGRAMS)})
        for one in (*programs.values(), *debug.values()):
            self.assertEqual((one.uid, one.gid, one.uname, one.gname, one.mtime), (0, 0, "", "", SECONDS), one.name)

    def test_they_have_a_license_text_for_each_linked_crate_and_for_the_c_libraries_in_crates(self):
        programs, _ = self.pack("out")
        with tarfile.open(programs) as archive:
            licenses = archive.extractfile(f"{NAME}/THIRD-PARTY-LICENSES").read().decode()
        granted = set()
        for part in licenses.split(f"\n{'=' * 100}\n")[1:]:
            users, _, text = part.partition("\n\n")
            self.assertNotIn("GNU GENERAL PUBLIC", text.upper()[:400], users)
            if GRANT.search(text):
                granted |= set(users.splitlines())
        packages = (f"-prollout-{each}" for each in ("coordinator", "worker", "ctl", "programs", "python"))
        command = ("cargo", "tree", "--locked", *packages, "-e", "normal,no-proc-macro", "--prefix", "none")
        tree = subprocess.run(command, cwd=RELEASE, check=True, capture_output=True, text=True).stdout
        linked = {f"{name} {version}" for name, version in re.findall(r"^(\S+) v(\S+)(?: \(\*\))?$", tree, re.M)}
        self.assertGreater(len(linked), 100)
        self.assertEqual(linked - {each.partition(":")[0] for each in granted}, set())
        names = {re.sub(r" .*:", "", each) for each in granted}
        self.assertLessEqual({
            "librocksdb-sys rocksdb/LICENSE.Apache", "librocksdb-sys rocksdb/util/xxhash.h", "lz4-sys liblz4/lib/LICENSE",
            "ring LICENSE-BoringSSL", "tikv-jemalloc-sys jemalloc/COPYING", "zstd-sys zstd/LICENSE",
            "Rust's standard library"}, names)

    def test_a_crate_without_a_license_text_fails(self):
        (self.work / "Cargo.toml").touch()
        packages = {"packages": [{"name": "bare", "version": "1.0.0", "manifest_path": str(self.work / "Cargo.toml")}]}
        for license, passes in (("MIT", False), ("MIT AND Apache-2.0", False), ("MIT OR Apache-2.0", True)):
            cargo = self.work / "cargo"
            tree = f"echo 'bare v1.0.0|{license}'"
            cargo.write_text(f"#!/bin/sh\nif [ $1 = tree ]; then {tree}; else echo '{json.dumps(packages)}'; fi\n")
            cargo.chmod(0o755)
            env = os.environ | {"PATH": f"{self.work}:{os.environ['PATH']}"}
            ran = subprocess.run([sys.executable, RELEASE / "licenses.py"], env=env, capture_output=True, text=True)
            self.assertEqual(ran.returncode == 0, passes, ran.stderr)
            self.assertEqual("bare 1.0.0: Apache-2.0" in ran.stdout, passes)
            self.assertEqual("has no license text" in ran.stderr, not passes)

    def test_a_debugger_finds_the_debug_information_and_the_program_has_none(self):
        for path in self.pack("out"):
            run("tar", "-xzf", path, "-C", self.work)
        for program in PROGRAMS:
            stripped, link = self.work / NAME / program, self.work / "link"
            run(stripped)
            sections = subprocess.run(["readelf", "-SW", stripped], check=True, capture_output=True, text=True).stdout
            self.assertNotIn(".debug_info", sections)
            self.assertNotIn(".symtab", sections)
            run("objcopy", "--dump-section", f".gnu_debuglink={link}", stripped, "/dev/null")
            debug = self.work / NAME / f"{program}.debug"
            # The link is the name of the file and the CRC of its content.
            self.assertTrue(link.read_bytes().startswith(debug.name.encode() + b"\0"))
            self.assertEqual(int.from_bytes(link.read_bytes()[-4:], sys.byteorder), zlib.crc32(debug.read_bytes()))

    def test_the_bytes_depend_on_the_programs_and_the_time_alone(self):
        first = [path.read_bytes() for path in self.pack("first")]
        for program in self.programs.iterdir():
            program.touch()
            program.chmod(0o700)
        self.assertEqual([path.read_bytes() for path in self.pack("again")], first)
        self.assertNotEqual([path.read_bytes() for path in self.pack("later", SECONDS + 1)], first)

    def test_a_missing_program_fails(self):
        (self.programs / "rolloutctl").unlink()
        with self.assertRaises(subprocess.CalledProcessError):
            self.pack("out")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
