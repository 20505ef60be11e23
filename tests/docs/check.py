"""Checks every block of code of every page: tests/guide/run.py runs it, or this program compares it with what it
describes, or it states a reason for neither.

    check.py DIRECTORY-OF-BINARIES

Invariant: a block without a kind, or one without a check, fails. So do an unknown command in a sentence, and a line of
more than 120 bytes outside of code and tables.
Absent: links and anchors (tests/deploy/check_links.py).
"""

import pathlib
import re
import sys
import tempfile
import unittest

import blocks
import keys
import kinds
import programs
import shell

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug").resolve()
# Pages whose blocks run in the shell of another page's, with the functions that are defined there.
CONTINUED = {"docs/guide-repairs.md": "docs/guide.md"}
PROGRAMS = {"rollout", "rolloutctl", "rollout-coordinator", "rollout-worker", "rollout-jepsen"}


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="rollout-docs-")
        cls.programs = programs.Programs(BIN, PROGRAMS)
        cls.kinds = kinds.Kinds(ROOT, cls.programs, pathlib.Path(cls.scratch.name))
        cls.pages = [(str(page.relative_to(ROOT)), page.read_text()) for page in blocks.pages(ROOT)]

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_every_block_is_run_or_compared_or_says_why_not(self):
        found, problems = 0, []
        for page, text in self.pages:
            of_page, wrong = blocks.collect(page, text)
            problems += wrong
            before = dict(self.pages).get(CONTINUED.get(page), "")
            functions = set(shell.read("\n".join(block.text for block in blocks.collect(page, before)[0]))[1])
            for block in of_page:
                if block.kind in blocks.KINDS:
                    problems += self.kinds.problems(block, functions)
                    functions |= shell.read(block.text)[1] if block.kind == "sh" else set()
            found += len(of_page)
        self.assertGreater(found, 80)
        self.assertEqual(problems, [], "\n" + "\n".join(problems))

    def test_commands_in_sentences_exist(self):
        found, problems = 0, []
        for page, text in self.pages:
            for line, command in blocks.spoken(text):
                found += 1
                problems += [f"{page}:{line}: `{command}`: {wrong}" for wrong in self.spoken(command)]
        self.assertGreater(found, 200)
        self.assertEqual(problems, [], "\n" + "\n".join(problems))

    def test_keys_in_sentences_exist_and_every_key_of_a_batch_is_described(self):
        batch, known = keys.of_batch(self.kinds), keys.of_daemons(self.kinds)
        for table, names in batch.items():
            known[table] = known.get(table, set()) | names
        problems = [f"{page}: {each}" for page, text in self.pages for each in keys.wrong(text, known)]
        self.assertEqual(problems, [])
        described = dict(self.pages)["docs/batch/configuration.md"]
        missing = [f"[{table}] {key}" for table, names in batch.items() for key in names if f"`{key}`" not in described]
        self.assertEqual(missing, [])

    def test_lines_are_short(self):
        long = [place for page, text in self.pages for place in blocks.long_lines(page, text)]
        self.assertEqual(long, [], "\n" + "\n".join(long))

    def test_error_codes_alarms_and_failures_exist(self):
        pages = dict(self.pages)
        found = [(page, code) for page, text in self.pages for code in re.findall(r"\bRO-\d{4}\b", text)]
        self.assertGreater(len(found), 100)
        self.assertEqual([each for each in found if f"docs/errors/{each[1]}.md" not in pages], [])
        folders = [ROOT / crate / "src" for crate in ("batch", "ctl", "coordinator", "ledger", "proto", "worker")]
        source = "\n".join(path.read_text() for folder in folders for path in folder.rglob("*.rs"))
        names = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", pages["docs/troubleshooting.md"]))
        self.assertGreater(len(names), 10)
        self.assertEqual([name for name in sorted(names) if f'"{name}"' not in source], [])

    def spoken(self, command):
        """A sentence may contain only the beginning of a command, and describe the rest."""
        words = [each for each in shell.read(command)[0].commands[:1] for each in each]
        if words and words[0] in PROGRAMS:
            wrong = self.programs.problem(words, whole=False)
            return [wrong] if wrong else []
        return self.kinds.commands.command(words) if words else []


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
