"""Owns: which commands a page may show: those that the project's programs accept, targets of the Makefile, crates of
the workspace, and other programs from a short list.

Invariant: a command that is an argument of another one, as of `kubectl exec` or `sh -c`, is compared too.
Absent: the arguments of other programs.
"""

import re
import subprocess

import shell

# The programs of others that pages may call. What is not here is a mistake, or a decision to take.
OTHERS = set(
    ". [ apt awk bash cargo cat cd chmod command cp curl date docker echo export false gh git grep gzip head helm id "
    "install jq kill kubectl local ls mkdir mv openssl pip podman printf pwd python3 rm rustup sbatch scancel "
    "scontrol sed seq set sh sha256sum shift skopeo sleep sort source strip sudo systemctl tail tar tee test torchrun "
    "touch tr true useradd wait wc xargs".split()
)


class Commands:
    def __init__(self, root, programs):
        self.programs = programs
        self.targets = set(re.findall(r"^([a-z][\w-]*):", (root / "Makefile").read_text(), re.M))
        manifests = [path.read_text() for path in sorted(root.glob("*/Cargo.toml")) + sorted(root.glob("*/*/Cargo.toml"))]
        self.crates = {name for text in manifests for name in re.findall(r'^name = "([\w-]+)"', text, re.M)}

    def of_script(self, text, functions=frozenset()):
        """(problems, what the script is)."""
        if wrong := syntax(text):
            return [wrong], shell.Script([], [])
        script, own = shell.read(text)
        return [wrong for words in script.commands for wrong in self.command(words, own | functions)], script

    def command(self, words, functions=frozenset()):
        """The problems of one command, given as words with the program first."""
        program = words[0].rsplit("/", 1)[-1]
        if program in self.programs.names:
            wrong = self.programs.problem([program, *words[1:]])
            return [wrong] if wrong else []
        if program == "make":
            targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
            return [f"the Makefile has no target {each}" for each in targets if each not in self.targets]
        if program not in OTHERS and words[0] not in functions:
            return [f"`{words[0]}` is no program that pages may call (OTHERS in tests/docs/commands.py)"]
        return self.inner(program, words)

    def inner(self, program, words):
        """Checks the command that another program gets as its argument."""
        if program == "cargo":
            return self.cargo(words)
        if program == "kubectl" and "--" in words:
            return self.command(words[words.index("--") + 1 :])
        if program in ("docker", "podman"):
            inner = [at for at, word in enumerate(words) if word in self.programs.names - {"rollout"}]
            return self.command(words[inner[0] :]) if inner else []
        if program in ("sh", "bash"):
            given = [at for at, word in enumerate(words) if re.fullmatch(r"-[a-z]*c", word)]
            return self.of_script(words[given[0] + 1])[0] if given else []
        return []

    def cargo(self, words):
        named = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("-p", "--package")]
        problems = [f"the workspace has no crate {each}" for each in named if each not in self.crates]
        if "run" in words and "--" in words and named and named[0] in self.programs.names:
            problems += self.command([named[0], *words[words.index("--") + 1 :]])
        return problems


def syntax(text):
    told = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=60)
    return told.stderr.strip() if told.returncode else None
