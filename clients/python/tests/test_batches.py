"""Batches: results of items, division by size, automatic batching."""

from __future__ import annotations

import json
import threading
import unittest
from typing import Any, Dict, List

from submission_manager import RawJson, errors

from support import AsyncCase, Case, HangUp, Reply, Script, Silence, error


def good(*ids: str, replayed: bool = False) -> Reply:
    results: List[Dict[str, Any]] = [{"status": 200, "intent": {"intentId": each, "status": "pending"}} for each in ids]
    return Reply(200, {"results": [{**each, "replayed": True} if replayed else each for each in results]})


def results(*each: Any) -> Reply:
    return Reply(200, {"results": list(each)})


def bad(status: int, code: str) -> Any:
    return {"status": status, "error": {"code": code, "message": "no"}}


class Echo(list):  # type: ignore[type-arg]
    """A script that accepts every item of every batch."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case

    def __bool__(self) -> bool:
        return True

    def pop(self, _index: Any = 0) -> Script:
        return good(*(item["intentId"] for item in json.loads(self.case.asked[-1].body)))


class BatchesTest(Case):
    def ids(self) -> List[List[str]]:
        return [[item["intentId"] for item in json.loads(asked.body)] for asked in self.asked]

    def test_each_item_has_its_result(self) -> None:
        ok = {"status": 200, "intent": {"intentId": "a", "status": "pending"}, "replayed": True}
        self.script[:] = [results(ok, bad(400, "invalid_request"), bad(409, "idempotency_conflict"))]
        found = self.client().intents.submit_batch([
            {"intentId": "a", "submissionTarget": "t", "payload": RawJson('{ "n": 1.0 }')},
            {"intentId": "b", "submissionTarget": "t", "payload": None},
            {"intentId": "c", "submissionTarget": "t"},
        ])
        self.assertEqual(found[0].unwrap()["replayed"], True)
        self.assertRaises(errors.InvalidRequest, found[1].unwrap)
        self.assertIsInstance(found[2].error, errors.IdempotencyConflict)
        body = b'[{"intentId":"a","submissionTarget":"t","payload":{ "n": 1.0 }},'
        body += b'{"intentId":"b","submissionTarget":"t","payload":null},{"intentId":"c","submissionTarget":"t"}]'
        self.assertEqual(self.asked[0].body, body)

    def test_items_that_were_refused_for_a_while_are_sent_again(self) -> None:
        ok = {"status": 200, "intent": {"intentId": "x", "status": "pending"}}
        self.script[:] = [
            results(ok, bad(503, "overloaded"), bad(400, "invalid_request"), bad(503, "store_unavailable")),
            results(bad(503, "overloaded"), ok),
            results(ok),
        ]
        found = self.client().intents.submit_batch([{"intentId": each, "submissionTarget": "t"} for each in "abcd"])
        self.assertEqual(self.ids(), [["a", "b", "c", "d"], ["b", "d"], ["b"]])
        self.assertEqual([each.error is None for each in found], [True, True, False, True])

    def test_a_long_list_is_divided(self) -> None:
        self.script = Echo(self)
        found = self.client().intents.submit_batch({"intentId": f"i{n}", "submissionTarget": "t"} for n in range(2100))
        self.assertEqual([len(each) for each in self.ids()], [1000, 1000, 100])
        self.assertEqual([each.unwrap()["intentId"] for each in found], [f"i{n}" for n in range(2100)])
        self.assertEqual(self.client().intents.submit_batch([]), [])

    def test_a_failure_of_the_whole_is_raised_if_nothing_was_stored(self) -> None:
        self.script[:] = [error(401, "unauthorized")]
        self.assertRaises(errors.Unauthorized, self.client().intents.submit_batch, [{"intentId": "a", "submissionTarget": "t"}])
        ids = [f"i{n}" for n in range(1001)]
        self.script[:] = [good(*ids[:1000]), error(401, "unauthorized")]
        found = self.client().intents.submit_batch([{"intentId": each, "submissionTarget": "t"} for each in ids])
        self.assertEqual(sum(each.error is None for each in found), 1000)
        self.assertIsInstance(found[1000].error, errors.Unauthorized)

    def test_a_batcher_sends_what_came_together(self) -> None:
        self.script = Echo(self)
        with self.client().intents.batcher(max_items=10, max_delay=60) as batcher:
            futures = [batcher.submit(f"i{n}", "t", {"n": n}) for n in range(25)]
            # The last five are sent by leaving the block, not by time.
        self.assertEqual([future.result()["intentId"] for future in futures], [f"i{n}" for n in range(25)])
        self.assertEqual([len(each) for each in self.ids()], [10, 10, 5])
        self.assertEqual([each for batch in self.ids() for each in batch], [f"i{n}" for n in range(25)])

    def test_a_batcher_sends_after_a_delay(self) -> None:
        self.script = Echo(self)
        with self.client().intents.batcher(max_delay=0.01) as batcher:
            self.assertEqual(batcher.submit("a", "t").result()["intentId"], "a")
            batcher.submit("b", "t")
            batcher.flush()
            self.assertEqual(self.ids(), [["a"], ["b"]])

    def test_a_batcher_respects_the_limit_of_bytes(self) -> None:
        self.script = Echo(self)
        with self.client().intents.batcher(max_bytes=300, max_delay=60) as batcher:
            futures = [batcher.submit(f"i{n}", "t", "x" * 60) for n in range(7)]
            self.assertRaises(errors.PayloadTooLarge, batcher.submit, "big", "t", "x" * 300)
        self.assertEqual(len([future.result() for future in futures]), 7)
        self.assertTrue(all(len(asked.body) <= 300 for asked in self.asked))
        self.assertEqual([len(each) for each in self.ids()], [2, 2, 2, 1])

    def test_a_batcher_gives_each_caller_its_own_error(self) -> None:
        ok = {"status": 200, "intent": {"intentId": "a", "status": "pending"}}
        self.script[:] = [results(ok, bad(409, "idempotency_conflict")), *[HangUp()] * 5]
        with self.client().intents.batcher(max_items=2, max_delay=60) as batcher:
            one, two = batcher.submit("a", "t"), batcher.submit("b", "t")
            self.assertEqual(one.result()["replayed"], False)
            self.assertRaises(errors.IdempotencyConflict, two.result)
            lost = batcher.submit("c", "t")
            batcher.flush()
            self.assertRaises(errors.Unreachable, lost.result)
        self.assertRaises(RuntimeError, batcher.submit, "d", "t")

    def test_batches_have_limits(self) -> None:
        for wrong in ({"max_items": 0}, {"max_items": 1001}, {"max_bytes": 9_000_000}, {"concurrency": 0}, {"max_waiting": 0}):
            with self.assertRaises(ValueError):
                self.client().intents.batcher(**wrong)


class AsyncBatchesTest(AsyncCase, BatchesTest):
    def test_a_caller_waits_while_too_many_are_waiting(self) -> None:
        import asyncio

        self.script[:] = [Silence()]
        client = self.client(timeout=0.2, max_retries=0)

        async def run() -> None:
            batcher = client._target.intents.batcher(max_items=1, max_waiting=2, max_delay=0)
            for name in "abc":
                await asyncio.wait_for(batcher.submit(name, "t"), 5)
            waiting = asyncio.ensure_future(batcher.submit("d", "t"))
            self.script[:] = Echo(self)
            self.script = Echo(self)
            self.assertEqual((await (await waiting))["intentId"], "d")
            await batcher.close()

        self.loop.run_until_complete(run())


class ThreadsTest(Case):
    def test_many_threads_share_a_batcher_with_little_room(self) -> None:
        self.script = Echo(self)
        found: List[str] = []

        def submit(thread: int) -> None:
            for number in range(10):
                found.append(batcher.submit(f"{thread}-{number}", "t").result()["intentId"])

        with self.client().intents.batcher(max_items=4, max_waiting=2, max_delay=0.001) as batcher:
            threads = [threading.Thread(target=submit, args=(each,)) for each in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(len(set(found)), 40)


if __name__ == "__main__":
    unittest.main()
