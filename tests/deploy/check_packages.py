"""Checks the packages that pages, deployments and messages tell people to install: known third-party packages, or
files. Rollout's packages are in no registry, so a package of that name in a registry is not ours.

    check_packages.py
"""

import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Third-party packages that may be installed by name.
ALLOWED = {"openai", "skypilot", "torch", "vllm"}
SUFFIXES = {".md", ".py", ".rs", ".sbatch", ".service", ".sh", ".toml", ".yaml", ".yml", ".Dockerfile"}
PAGES = ["README.md", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile"]
FOLDERS = ["docs", "deploy", "worker/python/rollout", "worker/src", "batch/src", "ctl/src"]
INSTALL = re.compile(
    r"\b(?:pip3?|pipx|cargo|conda|gem|brew) install\b|\buv (?:add|tool install)\b"
    r"|\b(?:npm|pnpm|yarn) (?:install|i|add)\b"
)
# Flags whose value is the next word, which is not a package.
WITH_VALUE = {
    *("-r", "--requirement", "-c", "--constraint", "-i", "--index-url", "--extra-index-url", "-f", "--find-links"),
    *("--python", "--only-binary", "--no-binary", "-t", "--target", "--prefix"),
    *("--root", "--path", "--git", "--version"),
}


def packages(text):
    """The names of the packages that a text says to install."""
    found = []
    text = text.replace("\\\n", " ")
    for command in INSTALL.finditer(text):
        # Up to the end of the command, of the code in a sentence, or of a comment.
        rest = re.split(r"[`;|&\n#)]", text[command.end() :], maxsplit=1)[0]
        words = iter(rest.split())
        for word in words:
            word = word.strip("\"'")
            if word in WITH_VALUE:
                next(words, None)
            elif word and not word.startswith(("-", ".", "~", "$", "{")) and "/" not in word and ".whl" not in word:
                found.append(re.match(r"[\w.-]*", word).group().lower())
    return found


def texts():
    yield from (ROOT / page for page in PAGES)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and (path.suffix in SUFFIXES or path.name.endswith("Dockerfile")):
                yield path


class Packages(unittest.TestCase):
    def test_names_are_found_in_commands_and_sentences(self):
        for text, names in [
            ("Run `pip install rollout-ml` on the host", ["rollout-ml"]),
            ("python3 -m pip install --no-index --no-deps /wheels/*.whl && rm x", []),
            ("uv pip install --python ~/bin/python --only-binary :all: --require-hashes -r ~/w/vllm.lock", []),
            ("uv pip install \\\n  'vllm[audio]==0.9' \\\n  torch>=2\n", ["vllm", "torch"]),
            ("cargo install --path ctl --locked", []),
            ("cargo install rolloutctl  # the client", ["rolloutctl"]),
            ("npm i -g rollout", ["rollout"]),
            ('raise ImportError(f"pip install \'torch>={_NEEDED}\'")', ["torch"]),
        ]:
            with self.subTest(text):
                self.assertEqual(packages(text), names)

    def test_only_packages_of_others_are_installed_by_name(self):
        paths = list(texts())
        self.assertGreater(len(paths), 100)
        wrong = []
        installs = 0
        for path in paths:
            text = path.read_text()
            installs += len(INSTALL.findall(text))
            names = [name for name in packages(text) if name not in ALLOWED]
            wrong += [f"{path.relative_to(ROOT)}: {name}" for name in names]
        self.assertEqual(wrong, [])
        self.assertGreater(installs, 3, "the commands of deploy/ are found")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
