"""Which context is used, and what overrides it, as in the command `rollout`. It needs no cluster."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import played_native

played_native.play()

from rollout.connection import Connection  # noqa: E402

CONTEXTS = """
current = "here"
[context.here]
endpoints = ["here:1"]
insecure_plaintext = true
[context.prod]
endpoints = ["prod:1"]
namespace = "team"
ca_file = "ca.pem"
cert_file = "/tls/cert.pem"
key_file = "/tls/key.pem"
"""


class Contexts(unittest.TestCase):
    def setUp(self) -> None:
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.file = Path(home.name) / "rollout" / "contexts.toml"
        self.file.parent.mkdir()
        self.file.write_text(CONTEXTS)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROLLOUT_")}
        environment["XDG_CONFIG_HOME"] = home.name
        patched = mock.patch.dict(os.environ, environment, clear=True)
        patched.start()
        self.addCleanup(patched.stop)

    def test_a_name_is_one_of_the_file_of_contexts(self) -> None:
        wanted = (["prod:1"], "team", str(self.file.parent / "ca.pem"), False)
        os.environ["ROLLOUT_CONTEXT"] = "prod"
        for found in (Connection.find(), Connection.find(context="prod")):
            self.assertEqual((found.endpoints, found.namespace, found.ca_file, found.insecure_plaintext), wanted)
        with self.assertRaisesRegex(ValueError, "no context 'staging'; known are here, prod"):
            Connection.find(context="staging")

    def test_a_file_is_read_where_one_is_named(self) -> None:
        file = self.file.with_name("client.toml")
        file.write_text('endpoints = ["file:1"]\ninsecure_plaintext = true\n')
        self.assertEqual(Connection.find(context=file).endpoints, ["file:1"])
        with self.assertRaises(FileNotFoundError):
            Connection.find(context="nowhere.toml")

    def test_the_current_one_is_taken_where_nothing_is_named(self) -> None:
        found = Connection.find()
        self.assertEqual((found.endpoints, found.insecure_plaintext), (["here:1"], True))

    def test_the_current_context_does_not_affect_complete_arguments(self) -> None:
        self.file.write_text(CONTEXTS.replace('"here"\n', '"prod"\n', 1))
        found = Connection.find("c1:1", insecure_plaintext=True)
        self.assertEqual((found.endpoints, found.namespace, found.insecure_plaintext), (["c1:1"], "default", True))

    def test_without_any_it_is_the_default(self) -> None:
        self.file.unlink()
        self.assertEqual(Connection.find(insecure_plaintext=True).endpoints, ["127.0.0.1:7420"])

    def test_false_is_tls_though_the_context_is_plain(self) -> None:
        for endpoints in (None, "c1:1"):
            with self.assertRaisesRegex(ValueError, "tls needs ca_file"):
                Connection.find(endpoints, insecure_plaintext=False)
            self.assertTrue(Connection.find(endpoints).insecure_plaintext)


if __name__ == "__main__":
    unittest.main()
