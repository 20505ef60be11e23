"""Checks release/archives.sh, which packs the programs of a release, with small programs in C instead.

    check_archives.py
"""

import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zlib

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "release" / "archives.sh"
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
        modes |= {f"{NAME}/{program}": 0o755 for program in PROGRAMS}
        self.assertEqual({name: one.mode for name, one in programs.items()}, modes)
        self.assertEqual(set(debug), {NAME, *(f"{NAME}/{program}.debug" for program in PROGRAMS)})
        for one in (*programs.values(), *debug.values()):
            self.assertEqual((one.uid, one.gid, one.uname, one.gname, one.mtime), (0, 0, "", "", SECONDS), one.name)

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
