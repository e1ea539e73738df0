"""Checks the TCPStore at MASTER_ADDR:MASTER_PORT as PyTorch's own tests of its stores do.

Run as a single worker. It only connects clients, since the server is the launcher's. Tests of
commands that this PyTorch lacks are skipped.
"""
import datetime
import os
import threading
import time
import unittest

import torch.distributed as dist

ADDRESS = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def client(seconds=30, **options):
    return dist.TCPStore(
        *ADDRESS,
        None,
        False,
        datetime.timedelta(seconds=seconds),
        wait_for_workers=False,
        **options,
    )


def later(action, seconds=0.2):
    thread = threading.Timer(seconds, action)
    thread.start()
    return thread


def has(name):
    return unittest.skipUnless(hasattr(dist.TCPStore, name), f"this PyTorch's store has no {name}")


class Store(unittest.TestCase):
    def setUp(self):
        # Keys of one test are not those of another.
        self.one = dist.PrefixStore(self.id(), client())
        self.other = dist.PrefixStore(self.id(), client())

    def settle(self):
        """A set has no reply: what another client sees is certain only after one that has."""
        self.one.add("settled", 0)

    def test_gets_what_another_client_has_set(self):
        self.one.set("key0", "value0")
        self.one.set("key0", "value1")
        self.one.set("empty", "")
        self.settle()
        self.assertEqual(self.other.get("key0"), b"value1")
        self.assertEqual(self.other.get("empty"), b"")

    def test_keeps_values_of_any_bytes_and_of_a_megabyte(self):
        value = bytes(range(256)) * 4096
        self.one.set("key", value)
        self.assertEqual(self.other.get("key"), value)

    def test_adds_to_numbers_that_were_set_or_not(self):
        self.assertEqual(self.one.add("n", 2), 2)
        self.assertEqual(self.other.add("n", 5), 7)
        self.assertEqual(self.other.add("n", -10), -3)
        self.one.set("m", "3")
        self.assertEqual(self.one.add("m", 4), 7)
        self.assertEqual(self.other.get("m"), b"7")

    def test_compares_and_sets(self):
        self.assertEqual(self.one.compare_set("k", "wrong", "new"), b"wrong")
        self.assertEqual(self.one.compare_set("k", "", "first"), b"first")
        self.assertEqual(self.other.compare_set("k", "wrong", "second"), b"first")
        self.assertEqual(self.other.compare_set("k", "first", "second"), b"second")
        self.assertEqual(self.one.get("k"), b"second")

    def test_deletes_a_key_once(self):
        self.one.set("k", "v")
        self.settle()
        self.assertTrue(self.other.delete_key("k"))
        self.assertFalse(self.one.delete_key("k"))

    def test_counts_keys(self):
        store = client()
        before = store.num_keys()
        self.one.set("a", "1")
        self.one.add("b", 1)  # its reply comes after both
        self.assertEqual(store.num_keys(), before + 2)

    def test_waits_until_the_last_key_is_set(self):
        later(lambda: self.other.set("a", "1"))
        later(lambda: self.other.set("b", "1"), 0.4)
        self.one.wait(["a", "b"], datetime.timedelta(seconds=30))
        self.assertEqual(self.one.get("b"), b"1")

    def test_a_get_waits_for_its_key(self):
        later(lambda: self.other.add("k", 1))
        self.assertEqual(self.one.get("k"), b"1")

    def test_a_wait_that_times_out_says_so_and_leaves_the_store_usable(self):
        store = client(1)
        with self.assertRaises(RuntimeError):
            store.get(f"{self.id()} absent")
        fresh = client()
        fresh.set(f"{self.id()} absent", "v")
        self.assertEqual(fresh.get(f"{self.id()} absent"), b"v")
        if hasattr(store, "queue_push"):  # PyTorch 1 does not cancel
            self.assertEqual(store.get(f"{self.id()} absent"), b"v")

    def test_many_clients_wait_for_one_key(self):
        results = []
        stores = [dist.PrefixStore(self.id(), client()) for _ in range(20)]
        threads = [threading.Thread(target=lambda s=s: results.append(s.get("go"))) for s in stores]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        self.one.set("go", "!")
        for thread in threads:
            thread.join()
        self.assertEqual(results, [b"!"] * 20)

    @has("check")
    def test_checks_without_waiting(self):
        self.one.set("a", "")
        self.settle()
        self.assertTrue(self.other.check(["a"]))
        self.assertFalse(self.other.check(["a", "b"]))

    @has("append")
    def test_appends(self):
        self.one.append("k", "po")
        self.settle()
        self.other.append("k", "tato")
        self.other.add("settled", 0)
        self.assertEqual(self.one.get("k"), b"potato")

    @has("multi_set")
    def test_sets_and_gets_many_at_once(self):
        self.one.multi_set(["foo", "bar"], ["po", "tato"])
        self.assertEqual(self.other.multi_get(["bar", "foo"]), [b"tato", b"po"])
        later(lambda: self.other.set("late", "v"))
        self.assertEqual(self.one.multi_get(["foo", "late"]), [b"po", b"v"])

    @has("_split_set")
    def test_takes_a_request_that_comes_in_two_pieces(self):
        store = client()
        store._split_set(f"{self.id()} k", b"value")
        self.assertEqual(store.get(f"{self.id()} k"), b"value")

    @has("clone")
    def test_a_clone_is_the_same_store(self):
        store = client()
        store.set(f"{self.id()} k", "v")
        self.assertEqual(store.clone().get(f"{self.id()} k"), b"v")

    @has("queue_push")
    def test_a_queue_gives_what_was_pushed_in_order(self):
        self.one.queue_push("q", b"1")
        self.one.queue_push("q", b"2")
        self.settle()
        self.assertEqual(self.other.queue_len("q"), 2)
        self.assertEqual(self.other.queue_pop("q"), b"1")
        self.assertEqual(self.other.queue_pop("q"), b"2")
        self.assertEqual(self.other.queue_len("q"), 0)
        with self.assertRaises(dist.QueueEmptyError):
            self.other.queue_pop("q", block=False)

    @has("queue_push")
    def test_a_pop_waits_for_a_push_and_each_push_wakes_one(self):
        results = []
        stores = [dist.PrefixStore(self.id(), client()) for _ in range(4)]
        threads = [
            threading.Thread(target=lambda s=s: results.append(s.queue_pop("q"))) for s in stores
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        for i in range(4):
            self.one.queue_push("q", str(i).encode())
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(results), [b"0", b"1", b"2", b"3"])

    @has("list_keys")
    def test_lists_keys(self):
        store = client()
        store.set(f"{self.id()} k", "v")
        self.assertIn(f"{self.id()} k", store.list_keys())
        self.assertEqual(len(store.list_keys()), store.num_keys())

    @has("barrier")
    def test_a_barrier_opens_for_the_last(self):
        done = []
        stores = [client() for _ in range(3)]

        def meet(store):
            store.barrier(f"{self.id()} b", 3)
            done.append(1)

        threads = [threading.Thread(target=meet, args=(s,)) for s in stores]
        for thread in threads[:2]:
            thread.start()
        time.sleep(0.2)
        self.assertEqual(done, [])
        threads[2].start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(done), 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
