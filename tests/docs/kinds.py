"""Owns: the check of each kind of block: commands exist, a program accepts the configuration, text parses.

Invariant: a block passes only if every part of it was compared with the programs, the Makefile, the schemas or the
Python package.
Absent: running a block. tests/guide/run.py runs those of docs/quickstart.md, docs/guide.md and docs/guide-repairs.md.
"""

import json
import re
import subprocess

import jsonschema
import tomllib
import yaml

import commands
import python_names

# A page may show part of a configuration file of a batch, member, worker or client. No file is accepted without these
# parts.
BATCH = {"model": 'uri = "m"', "input": 'glob = "missing.jsonl"', "output": 'dir = "out"'}
CONTEXT_KEYS = {"endpoints", "ca_file", "cert_file", "key_file", "insecure_plaintext", "dial_map", "namespace"}


class Kinds:
    def __init__(self, root, programs, scratch):
        self.root, self.programs, self.scratch = root, programs, scratch
        chart = root / "deploy" / "helm" / "rollout"
        self.defaults = yaml.safe_load((chart / "values.yaml").read_text())
        self.schemas = {"the chart's values": json.loads((chart / "values.schema.json").read_text())}
        self.commands = commands.Commands(root, programs)
        self.names = python_names.Package(root / "worker" / "python" / "rollout")
        for daemon in ("coordinator", "worker"):
            self.schemas[daemon] = partial(json.loads(self.told("rolloutctl", "config", "schema", "--of", daemon).stdout))

    def told(self, program, *arguments):
        command = [self.programs.binaries / program, *arguments]
        env = {"HOME": str(self.scratch), "PATH": "/usr/bin:/bin"}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=self.scratch, env=env)

    def problems(self, block, functions=frozenset()):
        """The problems of a block. `functions` are those that earlier blocks of the page define."""
        if block.not_run:
            return []
        check = getattr(self, f"of_{block.kind}", None)
        if check is None:
            return [f"{block.place}: a `{block.kind}` block cannot be checked; say why it is not run"]
        if block.kind in ("sh", "bash", "console"):
            return [f"{block.place}: {each}" for each in check(block.text, functions)]
        return [f"{block.place}: {each}" for each in check(block)]

    def of_rust(self, block):
        """Checks that the block's lines are in the file, unchanged."""
        if not block.source:
            return [f"a `{block.kind}` block names the file that it is taken from, or says why it is not run"]
        path = self.root / block.source
        whole = path.read_text() if path.is_file() else ""
        return [] if block.text.strip() and block.text in whole else [f"{block.source} does not have these lines"]

    # Output, formulas and drawings: few are in a file, and the others say why nothing is compared.
    of_text = of_rust

    def of_json(self, block):
        return refused(json.loads, block.text)

    def of_jsonl(self, block):
        return [wrong for line in block.text.splitlines() if line.strip() for wrong in refused(json.loads, line)]

    def of_yaml(self, block):
        if wrong := refused(lambda text: list(yaml.safe_load_all(text)), block.text):
            return wrong
        for document in yaml.safe_load_all(block.text):
            if not (isinstance(document, dict) and "apiVersion" in document):
                whole = merged(self.defaults, document)
                return against("the chart's values", self.schemas["the chart's values"], whole) + self.within(document)
        return []

    def within(self, values):
        """Configuration that the chart's values contain as text."""
        parts = [("coordinator", (values.get("members") or {}).get("config"))]
        parts += [("worker", pool.get("config")) for pool in values.get("pools") or []]
        problems = []
        for daemon, text in parts:
            wrong = refused(tomllib.loads, text or "")
            problems += wrong or against(daemon, self.schemas[daemon], tomllib.loads(text or ""))
        return problems

    def of_python(self, block):
        return self.names.problems(block.text)

    def of_toml(self, block):
        return self.configuration(block.text)

    def configuration(self, text):
        """The problems of a configuration file, according to its program or its schema."""
        if wrong := refused(tomllib.loads, text):
            return wrong
        keys = tomllib.loads(text)
        if keys.keys() & {"model", "input", "output", "sampling", "run"}:
            return self.batch(text, keys)
        if "endpoints" in keys and keys.keys() <= CONTEXT_KEYS or "cert_file" in keys:
            return self.context(text)
        answers = [against(daemon, self.schemas[daemon], keys) for daemon in ("coordinator", "worker")]
        return [] if [] in answers else answers[0] + answers[1]

    def batch(self, text, keys):
        """Completes a batch file that is shown in part. Its program reads it before it reads rows."""
        for table, line in BATCH.items():
            if table not in keys:
                text += f"\n[{table}]\n{line}\n"
            elif line.split()[0] not in keys[table]:
                text = text.replace(f"[{table}]\n", f"[{table}]\n{line}\n", 1)
        text = re.sub(r'^glob = ".*"', BATCH["input"], text, flags=re.M)
        (self.scratch / "batch.toml").write_text(text)
        told = self.told("rollout", "infer", "batch", "--config", "batch.toml", "--dry-run")
        good = 'input "missing.jsonl" matches no file' in told.stderr
        return [] if good else [told.stderr.strip() or "no answer"]

    def context(self, text):
        (self.scratch / "context.toml").write_text(text)
        told = self.told("rolloutctl", "--context", "./context.toml", "--timeout", "1ms", "status")
        return [told.stderr.strip()] if "error: context" in told.stderr else []

    def of_sh(self, text, functions=frozenset()):
        problems, script = self.commands.of_script(text, functions)
        for file, body in script.files:
            problems += [f"{file}: {wrong}" for wrong in self.file(file, body)]
        return problems

    of_bash = of_sh

    def of_console(self, text, functions=frozenset()):
        """Commands after `$ `, each up to its end, between their output."""
        problems, lines = [], text.splitlines()
        calls = []
        while lines:
            line = lines.pop(0)
            if line.startswith("# "):
                problems.append(f"a comment or a command of root, `{line}`: put it into a sentence or a `sh` block")
            if not line.startswith("$ "):
                continue
            calls.append(line[2:])
            while lines and (calls[-1].endswith("\\") or commands.syntax(calls[-1])):
                calls[-1] += "\n" + lines.pop(0)
        if not calls:
            problems.append("no command, which begins with `$ `; mark output alone as `text`")
        return problems + [wrong for call in calls for wrong in self.of_sh(call, functions)]

    def file(self, name, body):
        if name.endswith(".toml"):
            return self.configuration(body)
        if name.endswith(".jsonl"):
            return [wrong for line in body.splitlines() for wrong in refused(json.loads, line)]
        return []


def partial(schema):
    """The schema for a part of a document: nothing is required."""
    if isinstance(schema, dict):
        return {key: partial(value) for key, value in schema.items() if key != "required" or not isinstance(value, list)}
    return [partial(each) for each in schema] if isinstance(schema, list) else schema


def merged(defaults, given):
    """Values as Helm sees them: the chart's own, overridden by the given ones."""
    if isinstance(defaults, dict) and isinstance(given, dict):
        return defaults | {key: merged(defaults.get(key), value) for key, value in given.items()}
    return given


def against(name, schema, document):
    errors = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{name}: {'.'.join(map(str, each.absolute_path)) or 'top'}: {each.message[:200]}" for each in errors]


def refused(parse, text):
    try:
        parse(text)
    except (ValueError, yaml.YAMLError, SyntaxError) as wrong:
        return [f"{type(wrong).__name__}: {wrong}"]
    return []
