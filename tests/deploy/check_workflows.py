"""Checks the workflows for GitHub below .github/. They cannot run here, so they may contain nothing but calls of
programs that do: `make`, `cargo xtask` and `.ci/run`.

    check_workflows.py DIRECTORY-OF-BINARIES
"""

import pathlib
import re
import shlex
import subprocess
import sys
import unittest

import yaml

import running

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug").resolve()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
READ = {"contents": "read"}
ATTEST = {"id-token": "write", "attestations": "write"}
# The jobs that may do more than read the repository. None of them may run on a machine of the project.
PERMISSIONS = {
    ("release", "package"): READ | ATTEST,
    ("release", "publish"): {"contents": "write"} | ATTEST,
}
# A variable of the shell is data; an expression of GitHub would become a part of the script.
COMMAND = re.compile(r'(?:make|cargo xtask|\.ci/run)(?: [\w./=-]+| "(?:\$\w+|[\w./-])*")*')
# All other keys are refused: `shell`, `working-directory`, `defaults` and `container` change what a command does.
KEYS = {
    "workflow": {"name", "on", True, "permissions", "concurrency", "jobs"},
    "job": {"needs", "runs-on", "timeout-minutes", "permissions", "steps"},
    "step": {"uses", "with", "run", "env", "if"},
}
# The commands that need earlier commits, or the main branch beside a tag.
OF_HISTORY = re.compile(r"make nightly|cargo xtask release (package|verify)")
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # \S+")


def unknown_keys(place, kind, content):
    return [f"{place}: key {key} of a {kind}" for key in content if key not in KEYS[kind]]


def problems(text):
    """What is wrong with a workflow."""
    workflow = yaml.safe_load(text)
    name, jobs = workflow["name"], workflow["jobs"]
    # YAML 1.1 reads `on` as true.
    events = workflow.get("on", workflow.get(True))
    found = [f"uses {line.strip()}" for line in text.splitlines() if "uses:" in line and not PINNED.search(line)]
    found += unknown_keys(name, "workflow", workflow)
    if workflow.get("permissions") != READ:
        found.append(f"permissions {workflow.get('permissions')}")
    if "group" not in workflow.get("concurrency", {}):
        found.append("no concurrency group")
    if "secrets" in text or "pull_request_target" in text or "workflow_run" in events:
        found.append("a secret, or an event that gives pull requests of others the permissions of the repository")
    for job, content in jobs.items():
        place = f"{name}/{job}"
        found += unknown_keys(place, "job", content)
        if content.get("permissions", READ) != PERMISSIONS.get((name, job), READ):
            found.append(f"{place}: permissions {content['permissions']}")
        if "timeout-minutes" not in content:
            found.append(f"{place}: no timeout")
        if not str(content["runs-on"]).startswith("ubuntu-"):
            if "pull_request" in events:
                found.append(f"{place}: pull requests run on a machine of the project")
            if content.get("permissions", READ) != READ:
                found.append(f"{place}: a machine of the project may do more than read")
        checkouts = [step["with"] for step in content["steps"] if step.get("uses", "").startswith("actions/checkout@")]
        if any(OF_HISTORY.match(step.get("run", "")) for step in content["steps"]):
            if [checkout.get("fetch-depth") for checkout in checkouts] != [0]:
                found.append(f"{place}: a checkout without the history")
        if any(checkout["persist-credentials"] for checkout in checkouts):
            found.append(f"{place}: keeps credentials in the checkout")
        for step in content["steps"]:
            found += unknown_keys(place, "step", step)
            if "run" in step and not COMMAND.fullmatch(step["run"]):
                found.append(f"{place}: runs {step['run']}")
    return found


def steps():
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            yield from job["steps"]


class Workflows(unittest.TestCase):
    def test_they_are_thin_and_may_do_little(self):
        self.assertEqual([path.name for path in WORKFLOWS], ["ci.yml", "nightly.yml", "release.yml"])
        for path in WORKFLOWS:
            self.assertEqual(problems(path.read_text()), [], path.name)

    def test_each_rule_finds_what_breaks_it(self):
        text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
        for old, new, finding in (
            ("@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1", "@v7", "uses - uses: actions/checkout@v7"),
            ("permissions:\n  contents: read\n", "", "permissions None"),
            ("permissions:\n  contents: read\n", "permissions: write-all\n", "permissions write-all"),
            ("      attestations: write\n", "      attestations: write\n      contents: write\n", "permissions {"),
            ("  group: release-", "  groups: release-", "no concurrency group"),
            ("    timeout-minutes: 180\n", "", "release/package: no timeout"),
            ("run: make preflight", "run: cargo build", "release/package: runs cargo build"),
            ("run: make preflight", "run: make preflight && curl example.com", "runs make preflight && curl"),
            ('"$GITHUB_REF_NAME"', "${{ github.ref_name }}", "release/package: runs cargo xtask release package"),
            ("github.token", "secrets.TOKEN", "a secret, or an event"),
            ("github.token", "secrets['TOKEN']", "a secret, or an event"),
            ("runs-on: ubuntu-22.04", "runs-on: [rollout-nightly]", "release/package: a machine of the project may do"),
            ("  push:\n", "  pull_request_target:\n  push:\n", "a secret, or an event"),
            ("  push:\n", "  workflow_run:\n  push:\n", "a secret, or an event"),
            ("  push:\n", "  pull_request:\n  push:\n", "release/verify: pull requests run on a machine"),
            ("persist-credentials: false", "persist-credentials: true", "release/package: keeps credentials"),
            ("fetch-depth: 0", "fetch-depth: 1", "release/package: a checkout without the history"),
            ("run: make preflight", "run: make preflight\n        shell: python", "key shell of a step"),
            ("run: make preflight", "run: make preflight\n        working-directory: /", "key working-directory"),
            ("    timeout-minutes: 180\n", "    timeout-minutes: 180\n    container: a\n", "key container of a job"),
            ("jobs:\n", "defaults: {run: {shell: python}}\njobs:\n", "release: key defaults of a workflow"),
        ):
            with self.subTest(new):
                self.assertIn(old, text)
                found = problems(text.replace(old, new, 1))
                self.assertEqual(len(found), 1, found)
                self.assertIn(finding, found[0])

    def test_an_action_has_the_same_commit_everywhere(self):
        found = {}
        for step in steps():
            if "uses" in step:
                action, _, commit = step["uses"].partition("@")
                found.setdefault(action, set()).add(commit)
        self.assertEqual({action: commits for action, commits in found.items() if len(commits) > 1}, {})

    def test_the_commands_exist(self):
        targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.M))
        commands = [shlex.split(step["run"]) for step in steps() if "run" in step]
        self.assertGreater(len(commands), 4)
        for program, *words in commands:
            with self.subTest([program, *words]):
                if program == "make":
                    self.assertLessEqual(set(words), targets)
                elif program == "cargo":
                    # With unknown arguments before it, `--help` fails.
                    command = [BIN / "xtask", *words[1:], "--help"]
                    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
                    self.assertEqual(told.returncode, 0, told.stderr)
                else:
                    self.assertTrue((ROOT / program).is_file())

    def test_rust_has_the_version_of_the_images(self):
        dockerfile = (ROOT / "deploy" / "container" / "Dockerfile").read_text()
        (version,) = re.findall(r"^ARG RUST=(\S+)$", dockerfile, re.M)
        chosen = [step["with"]["toolchain"] for step in steps() if "rust-toolchain@" in step.get("uses", "")]
        self.assertEqual(set(chosen), {version})
        least = running.toml((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
        self.assertTrue(version.startswith(f"{least}."), (version, least))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
