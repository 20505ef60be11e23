"""Tests the checker of the pages with wrong pages: it must find each mistake, and correct pages must pass.

    test_checker.py DIRECTORY-OF-BINARIES

Invariant: a check that no longer finds its mistake fails here, instead of passing everywhere.
Absent: the pages themselves (`check.py`).
"""

import pathlib
import sys
import tempfile
import unittest

import blocks
import check
import keys
import kinds
import programs
import shell

# (what is wrong, kind of the block, its text, part of the answer)
WRONG = [
    ("a verb", "sh", "rolloutctl run lst", "no verb `lst`"),
    ("a verb after flags", "sh", "rolloutctl -o json --context c.toml runs list", "no verb `runs`"),
    ("a noun alone", "sh", "rolloutctl run", "needs a verb"),
    ("a flag", "sh", "rolloutctl run list --colour red", "no --colour"),
    ("a flag of another verb", "sh", "rolloutctl run list --deadline 3s", "no --deadline"),
    ("a short flag", "sh", "rolloutctl run list -Z", "no -Z"),
    ("a flag's value", "sh", "rolloutctl -o xml status", "no value xml"),
    ("a flag without its value", "sh", "rolloutctl cert init-ca --ca-dir", "needs a value"),
    ("a flag in place of a value", "sh", "rolloutctl status --context --quiet", "needs a value"),
    ("a value that a flag does not take", "sh", "rolloutctl status --quiet=yes", "takes no value"),
    ("no required flag", "sh", "rollout export first", "needs --output"),
    ("no required argument", "sh", "rolloutctl cert issue member --ca-dir ca", "needs 2 arguments, and has 1"),
    ("an argument too many", "sh", "rolloutctl member promote a b", "takes no `b`"),
    ("optional parts in brackets", "sh", "rollout export RUN [--output DIR]", "takes no `[--output`"),
    ("a flag of a daemon", "sh", "rollout-coordinator --config c.toml --fast", "no --fast"),
    ("no configuration", "sh", "rollout-coordinator --check-config", "needs --config"),
    ("a target", "sh", "make everything", "no target everything"),
    ("a program of others", "sh", "sl -l", "no program"),
    ("a crate", "sh", "cargo test -p rollout-nothing", "no crate rollout-nothing"),
    ("what cargo runs", "sh", "cargo run -p rollout-jepsen -- run --workload tea", "no value tea"),
    ("after a pipe", "sh", "echo x | rolloutctl frob", "no verb `frob`"),
    ("in a loop", "sh", "for i in 1 2; do rolloutctl frob $i; done", "no verb `frob`"),
    ("in a substitution", "sh", 'echo "$(rolloutctl frob)"', "no verb `frob`"),
    ("in a function", "sh", "go() {\n  rolloutctl frob\n}\ngo", "no verb `frob`"),
    ("on a line that goes on", "sh", "rolloutctl run \\\n  frob", "no verb `frob`"),
    ("after an assignment", "sh", "ROLLOUT_CONTEXT=c.toml rolloutctl frob", "no verb `frob`"),
    ("in a pod", "sh", "kubectl exec -i p -- sh -c 'cd /tmp && rolloutctl frob'", "no verb `frob`"),
    ("in a container", "sh", "docker run rollout:1 rollout-worker --frob", "no --frob"),
    ("quotes", "sh", "echo 'open", "unexpected EOF"),
    ("a file that a script writes", "sh", "cat > batch.toml <<'E'\n[model]\nuri = 'm'\ncolour = 1\nE", 'unknown key "colour"'),
    ("rows that a script writes", "sh", "cat > p.jsonl <<E\n{'prompt': 1}\nE", "JSONDecodeError"),
    ("output only", "console", "all is well", "no command"),
    ("a root's prompt", "console", "$ ls\n# rolloutctl frob", "command of root"),
    ("a verb after a prompt", "console", "$ rolloutctl status\nok\n$ rolloutctl frob", "no verb `frob`"),
    ("a member's key", "toml", '[raft]\ncolour = "far-zones"', "colour"),
    ("a section of none", "toml", "[colours]\nred = 1", "colours"),
    ("a member's value", "toml", "[raft]\nprofile = 3", "raft.profile"),
    ("a worker's key", "toml", '[[engine]]\nkind = "mock"\nslotz = 2', "slotz"),
    ("a context's key", "toml", 'endpoints = ["a:1"]\ncert_file = "c"\ncolour = 1', 'unknown key "colour"'),
    ("a batch's key", "toml", "[sampling]\ntemprature = 1", 'unknown key "temprature"'),
    ("a batch's value", "toml", "[sampling]\ntop_p = 7", "top_p"),
    ("TOML", "toml", "a = ", "TOMLDecodeError"),
    ("JSON", "json", "{'a': 1}", "JSONDecodeError"),
    ("a line of JSON", "jsonl", '{"a": 1}\n{"a": …}', "JSONDecodeError"),
    ("YAML", "yaml", "a: [1", "ParserError"),
    ("a value of the chart", "yaml", "members: {replica: 3}", "replica"),
    ("a worker's key in the chart", "yaml", "pools:\n  - {name: a, image: i, config: 'colour = 1'}", "colour"),
    ("Python", "python", "def f(:", "SyntaxError"),
    ("a name of the package", "python", "import rollout\nrollout.Stored()", "no Stored"),
    ("an imported name", "python", "from rollout.batch import submit", "no submit"),
    ("a module", "python", "import rollout.batches", "no module rollout.batches"),
    ("an argument", "python", "rollout.submit_batch([], modell='m')", "takes no modell"),
    ("Rust from nowhere", "rust", "fn f() {}", "a `rust` block names the file"),
    ("text from nowhere", "text", "all is well", "a `text` block names the file"),
]
RIGHT = [
    ("sh", "f() { rolloutctl run list; }\nf | tee log >out 2>&1 && rolloutctl -ojson status -q"),
    ("sh", "rolloutctl run list --sort-by -counts.failed\nrolloutctl cert revoke --issued-before now"),
    ("sh", "x=$(date +%s) y=$((1 + 2)); rolloutctl run describe \"$x-${y%-}\" $(cat names) # rolloutctl frob"),
    ("sh", "until rolloutctl status | grep -q ok; do sleep 1; done"),
    ("sh", "cat <<'E' > notes\nrolloutctl frob\nE\nrolloutctl run retry r --failed"),
    ("console", "$ for i in 1 2; do\n    rolloutctl run describe $i\n  done\nr1\n$ rolloutctl status"),
    ("toml", '[[engine]]\nkind = "mock"\nslots = 2'),
    ("toml", '[input]\ncolumns = { id = "doc" }'),
    ("yaml", "apiVersion: v1\nkind: Anything"),
    ("json", '{"a":\n 1}'),
    ("python", "import rollout\nrollout.Store('a:1', job='j', round=0)"),
]
PAGES = [
    ("```\nls\n```", "no kind"),
    ("```shell\nls\n```", "unknown kind"),
    ("```sh\nls", "no end"),
    ("<!-- not-run: -->\n```sh\nls\n```", "without a reason"),
    ("<!-- not-run: later -->\n\nNothing.", "not directly above"),
    ("<!-- not-run: later -->", "not directly above"),
    ("Text:\n\n    ls -l\n", "without a fence"),
]


class Checker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="rollout-docs-")
        tool = programs.Programs(check.BIN, check.PROGRAMS)
        cls.kinds = kinds.Kinds(check.ROOT, tool, pathlib.Path(cls.scratch.name))
        check.Pages.programs, check.Pages.kinds = tool, cls.kinds

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def test_each_mistake_is_found(self):
        for what, kind, text, answer in WRONG:
            with self.subTest(what):
                problems = self.kinds.problems(blocks.Block("page.md", 1, kind, text))
                self.assertIn(answer, "\n".join(problems))

    def test_correct_blocks_pass(self):
        for kind, text in RIGHT:
            with self.subTest(text):
                self.assertEqual(self.kinds.problems(blocks.Block("page.md", 1, kind, text)), [])

    def test_a_reason_excuses_a_block_and_a_changed_excerpt_is_found(self):
        found, problems = blocks.collect("page.md", "<!-- not-run: an outline -->\n```rust\n...\n```\n")
        self.assertEqual((found[0].not_run, problems, self.kinds.problems(found[0])), ("an outline", [], []))
        text = "//! Owns: a thing\n"
        found, _ = blocks.collect("page.md", f"<!-- from: ctl/src/progress.rs -->\n```rust\n{text}```\n")
        self.assertIn("does not have these lines", self.kinds.problems(found[0])[0])
        two = "<!-- not-run: a formula -->\n```text\na\n```\n```text\nb\n```\n"
        self.assertEqual([block.not_run for block in blocks.collect("page.md", two)[0]], ["a formula", None])

    def test_mistakes_of_a_page_are_found(self):
        for text, answer in PAGES:
            with self.subTest(text):
                self.assertIn(answer, "\n".join(blocks.collect("page.md", text)[1]))
        self.assertEqual(blocks.collect("page.md", "1. One:\n\n   ```sh\n   ls\n   ```\n\n    more\n")[1], [])

    def test_commands_in_sentences_are_found(self):
        text = "Use `rolloutctl run\nfrob` and `make nothing`.\n\n| a | `rollout --frob` |\n\n```sh\n`rollout x`\n```\n"
        self.assertEqual(
            list(blocks.spoken(text)), [(1, "rolloutctl run frob"), (2, "make nothing"), (4, "rollout --frob")]
        )
        spoken = check.Pages().spoken
        self.assertEqual([len(spoken(command)) for _, command in blocks.spoken(text)], [1, 1, 1])
        for good in ("rolloutctl run", "rolloutctl events --tail", "rolloutctl cert issue member NAME …"):
            self.assertEqual(spoken(good), [])

    def test_keys_of_no_configuration_are_found(self):
        known = keys.of_daemons(self.kinds) | {"run": keys.of_batch(self.kinds)["run"]}
        text = "`[raft] profile`, `[raft] profil`, `[[engine]] kind = \"mock\"`, `[run] deadline_s`, `[race] profile`, `[run] ttl`"
        self.assertEqual(keys.wrong(text, known), ["[raft] profil", "[race] profile", "[run] ttl"])

    def test_long_lines_are_found(self):
        text = "x" * 121 + "\n" + "| " + "x" * 121 + "\n```sh\n" + "x" * 121 + "\n```\n" + "é" * 61 + "\n" + "x" * 120
        self.assertEqual(list(blocks.long_lines("p.md", text)), ["p.md:1: 121 bytes", "p.md:6: 122 bytes"])

    def test_a_here_document_belongs_to_the_file_that_it_is_written_to(self):
        script, _ = shell.read("cat > a.toml <<E && sort <<'F' > b\nx = 1\nE\nline\nF\nls\n")
        self.assertEqual([words[0] for words in script.commands], ["cat", "sort", "ls"])
        self.assertIn(("a.toml", "x = 1\n"), script.files)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
