"""Our equivalents of torch's checks of every store and every rendezvous backend, for machines without torch's own
tests."""

from __future__ import annotations

import threading
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousStateError


class StoreTestBase:
    def test_values(self):
        store = self._create_store()
        before = store.num_keys()
        for n in (1, 2, 3):
            total = store.add("sum", n)
        self.assertEqual(total, 6)
        store.set("a", "1")
        store.set("a", "2")
        store.set("b", "")
        self.assertEqual(store.num_keys(), before + 3)
        self.assertEqual([store.get("sum"), store.get("a"), store.get("b")], [b"6", b"2", b""])
        self.assertTrue(store.check(["a", "b"]))
        self.assertFalse(store.check(["a", "nothing"]))
        self.assertTrue(store.delete_key("a"))
        self.assertFalse(store.delete_key("a"))
        self.assertEqual(store.num_keys(), before + 2)

    def test_compare_set(self):
        store = self._create_store()
        self.assertEqual(store.compare_set("k", "other", "new"), b"other")
        self.assertFalse(store.check(["k"]))
        self.assertEqual(store.compare_set("k", "", "one"), b"one")
        self.assertEqual(store.compare_set("k", "other", "two"), b"one")
        self.assertEqual(store.compare_set("k", "one", "two"), b"two")
        self.assertEqual(store.get("k"), b"two")

    def test_waits(self):
        store = self._create_store()
        with self.assertRaisesRegex(dist.DistStoreError, "timeout"):
            store.wait(["never"], timedelta(milliseconds=200))
        store.add("there", 1)
        store.wait(["there"])
        other = store.clone()
        self.assertIsInstance(other, dist.Store)
        thread = threading.Thread(target=lambda: other.set("later", "x"))
        thread.start()
        store.wait(["there", "later"], timedelta(seconds=120))
        thread.join()
        self.assertEqual(store.get("later"), b"x")

    def test_extended(self):
        store = self._create_store()
        self.assertTrue(store.has_extended_api())
        store.append("log", "one,")
        store.append("log", "two")
        store.multi_set(["x", "y"], ["1", "2"])
        self.assertEqual(store.multi_get(["log", "x", "y"]), [b"one,two", b"1", b"2"])

    def test_queues(self):
        store = self._create_store()
        try:
            store.queue_push("q", "1")
        except NotImplementedError:
            self.skipTest("torch forwards no queues here")
        store.queue_push("q", "2")
        self.assertTrue(store.check(["q"]))
        self.assertEqual(store.queue_len("q"), 2)
        self.assertEqual([store.queue_pop("q"), store.queue_pop("q", block=False)], [b"1", b"2"])
        self.assertEqual(store.queue_len("q"), 0)
        with self.assertRaisesRegex(dist.QueueEmptyError, "empty"):
            store.queue_pop("q", block=False)
        store.set_timeout(timedelta(milliseconds=50))
        with self.assertRaisesRegex(dist.DistStoreError, "timeout"):
            store.queue_pop("q")


class RendezvousBackendTestMixin:
    def test_the_first_state_is_set_and_read(self):
        self.assertIsNone(self._backend.get_state())
        state, token, has_set = self._backend.set_state(b"x")
        self.assertEqual((state, has_set), (b"x", True))
        self.assertEqual(self._backend.get_state(), (b"x", token))

    def test_only_the_current_token_sets(self):
        _, first, _ = self._backend.set_state(b"x")
        state, second, has_set = self._backend.set_state(b"y", first)
        self.assertEqual((state, has_set), (b"y", True))
        self.assertNotEqual(first, second)
        for token in (first, None, "invalid"):
            self.assertEqual(self._backend.set_state(b"z", token), (b"y", second, False))

    def test_a_corrupt_state_is_an_error(self):
        self._corrupt_state()
        with self.assertRaises(RendezvousStateError):
            self._backend.get_state()
