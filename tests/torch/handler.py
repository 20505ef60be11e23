"""The values that `--rdzv-conf` accepts, through the plug-in as torchrun finds it. It needs no cluster: it sends
no request."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import unittest
from datetime import timedelta
from pathlib import Path
from unittest import mock

import torch
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousTimeout,
    create_handler as torchs_own,
)

import rollout.rendezvous
import rollout.torchrun


def params(**conf: object) -> RendezvousParameters:
    conf = {"insecure_plaintext": "true", **conf}
    return RendezvousParameters("rollout", "127.0.0.1:1,127.0.0.1:2", "sft", 2, 4, "10.0.0.1", **conf)


def handler(**conf: object) -> rollout.RolloutRendezvousHandler:
    return rollout.torchrun.get_handler()(params(**conf))


def ms(time: timedelta) -> int:
    return round(time.total_seconds() * 1000)


class Options(unittest.TestCase):
    def refused(self, said: str, kind: type[Exception] = ValueError, **conf: object) -> None:
        with self.assertRaisesRegex(kind, said):
            handler(**conf)

    def test_the_handler_gets_the_parameters_of_torchrun(self):
        made = handler(timeout=900)
        self.assertEqual(made.get_backend(), "rollout")
        self.assertEqual(made.get_run_id(), "sft")
        self.assertTrue(made.use_agent_store)
        self.assertEqual(made._nodes, (2, 4))
        self.assertTrue(made._node.startswith("10.0.0.1_"), made._node)

    def test_defaults_are_torchs(self):
        torch_has, made = RendezvousTimeout(), handler()
        self.assertEqual(made._join_ms, ms(torch_has.join))
        self.assertEqual(made._last_call_ms, ms(torch_has.last_call))
        self.assertEqual(made._close_ms, ms(torch_has.close))
        with mock.patch.object(DynamicRendezvousHandler, "from_backend") as from_backend:
            torchs_own(mock.Mock(), mock.Mock(), params())
        given = from_backend.call_args.kwargs
        wanted = (given["keep_alive_interval"] * 1000, given["keep_alive_max_attempt"])
        with mock.patch.object(rollout.rendezvous.Connection, "cluster") as cluster:
            handler()
        rendezvous = cluster.return_value.rendezvous.call_args.args
        self.assertEqual(rendezvous[-2:], wanted)
        self.assertEqual(wanted, (5000, 3))
        store = torch.distributed.distributed_c10d.default_pg_timeout
        self.assertLessEqual(made._store_timeout, store)
        self.assertEqual(made._store_timeout, torch.distributed.HashStore().timeout)

    def test_documented_defaults_are_those(self):
        text = (Path(__file__).parents[2] / "docs" / "training" / "torchrun.md").read_text()
        (row,) = [line for line in text.splitlines() if line.startswith("| times | torch's, as `--rdzv-conf`: ")]
        told = dict(re.findall(r"`(\w+)` (\d+)", row))
        (store,) = re.findall(r"`store_timeout` (\d+)", text)
        wanted = {
            "join_timeout": RendezvousTimeout().join,
            "last_call_timeout": RendezvousTimeout().last_call,
            "close_timeout": RendezvousTimeout().close,
        }
        self.assertEqual({key: str(ms(time) // 1000) for key, time in wanted.items()} | {
            "keep_alive_interval": "5", "keep_alive_max_attempt": "3",
        }, told)
        self.assertEqual(timedelta(seconds=int(store)), handler()._store_timeout)
        for key in told:
            self.assertIn(key, rollout.rendezvous._KEYS)

    def test_every_option_is_heard(self):
        with mock.patch.object(rollout.rendezvous.Connection, "cluster") as cluster:
            made = handler(
                join_timeout="11",
                last_call_timeout="12",
                close_timeout="13",
                keep_alive_interval="14",
                keep_alive_max_attempt="15",
                store_timeout="16",
                gateway_port="17000",
                namespace="research",
                node="agent-7",
                heartbeat_timeout="4",
            )
        self.assertEqual((made._join_ms, made._last_call_ms, made._close_ms), (11_000, 12_000, 13_000))
        self.assertEqual(made._store_timeout, timedelta(seconds=16))
        self.assertEqual(made._port, 17_000)
        namespace, job, node, _, addr, interval, attempts = cluster.return_value.rendezvous.call_args.args
        self.assertEqual((namespace, job, node, addr), ("research", "sft", "agent-7", "10.0.0.1"))
        self.assertEqual((interval, attempts), (14_000, 15))

    def test_bad_values_are_refused_by_name(self):
        for key in ("join_timeout", "last_call_timeout", "close_timeout", "keep_alive_interval"):
            for value in ("0", "-1", "soon"):
                self.refused(key, **{key: value})
        for key in ("keep_alive_max_attempt", "store_timeout"):
            for value in ("0", "-3", "1.5"):
                self.refused(key, **{key: value})
        for value in ("-1", "65536", "127.0.0.1:0"):
            self.refused("gateway_port", gateway_port=value)
        self.refused("insecure_plaintext", insecure_plaintext="perhaps")
        self.refused("contradicts", ca_file="ca.pem")
        self.refused("cert_file", insecure_plaintext="no", ca_file="ca.pem")
        self.refused("nowhere.toml", FileNotFoundError, context="nowhere.toml")

    def test_unknown_options_are_refused_with_the_nearest(self):
        self.refused("no option last_call: did you mean last_call_timeout", last_call="3")
        self.refused("no option keepalive_interval: did you mean keep_alive_interval", keepalive_interval="3")
        self.refused("no option is_host: it takes .*join_timeout", is_host="0")


class TorchsVersion(unittest.TestCase):
    def test_an_older_torch_is_named(self):
        for version in ("2.12.1", "1.13.1+cu117", "2.9.0a0+gitabc"):
            with mock.patch.object(torch, "__version__", version):
                with self.assertRaisesRegex(ImportError, f"2.13 or newer, this is {version.split('+')[0]}"):
                    handler()

    def test_this_one_and_newer_ones_are_taken(self):
        for version in (torch.__version__, "2.13.0", "2.14.0.dev20261101+cpu", "3.0.0a0", "built by hand"):
            with mock.patch.object(torch, "__version__", version):
                rollout.torch_version.check()

    def test_no_torch_at_all_is_told(self):
        # Before anything of torch is imported: torchrun is missing too, but rollout.Store is requested.
        program = "import sys; sys.modules['torch'] = None\nimport rollout\nrollout.Store"
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("need torch 2.13 or newer", ran.stderr)


class EntryPoint(unittest.TestCase):
    def test_torchrun_finds_the_backend(self):
        registry = importlib.import_module("torch.distributed.elastic.rendezvous.registry")
        made = registry.get_rendezvous_handler(params())
        self.assertIsInstance(made, rollout.RolloutRendezvousHandler)


if __name__ == "__main__":
    unittest.main(verbosity=2)
