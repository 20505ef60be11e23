"""Checks the systemd units: systemd accepts them, and they are hardened no less than before.

    check_units.py
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

UNITS = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "systemd"
# The highest exposure that `systemd-analyze security` may report. An engine needs devices and executable memory.
EXPOSURE = {"rollout-coordinator": 2.0, "rollout-worker": 5.0}


class Units(unittest.TestCase):
    def test_they_wait_to_be_told_and_watch(self):
        for name in EXPOSURE:
            text = (UNITS / f"{name}.service").read_text()
            self.assertIn("\nType=notify\n", text)
            (watchdog,) = re.findall(r"^WatchdogSec=(\d+)$", text, re.M)
            self.assertGreaterEqual(int(watchdog), 30, "signs of life come every 5 s")

    @unittest.skipUnless(shutil.which("systemd-analyze"), "systemd is not on this machine")
    def test_systemd_takes_them_and_finds_them_hardened(self):
        for name, most in EXPOSURE.items():
            with tempfile.TemporaryDirectory() as there, self.subTest(name):
                text = (UNITS / f"{name}.service").read_text()
                # The program is not installed here.
                unit = pathlib.Path(there) / f"{name}.service"
                unit.write_text(re.sub(r"/usr/bin/rollout-\w+", "/bin/true", text))
                verified = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
                self.assertEqual((verified.returncode, verified.stderr), (0, ""))
                judge = ["systemd-analyze", "security", "--offline=true", unit]
                said = subprocess.run(judge, capture_output=True, text=True).stdout
                self.assertLessEqual(float(re.search(r"exposure level.*: ([0-9.]+)", said).group(1)), most)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
