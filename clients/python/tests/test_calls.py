"""What single calls promise whatever the service does: retries, errors, exact bytes, lists, waiting.

    PYTHONPATH=clients/python python3 -m unittest discover clients/python/tests
"""

from __future__ import annotations

import json
import unittest
from typing import Any, Callable, List, Optional, Tuple, Type
from unittest import mock

import submission_manager
from submission_manager import Client, RawJson, SubmissionManagerError, _protocol, errors
from submission_manager._protocol import Call, Options, packed, pause_before_retry

from support import GOOD, INTENT, REPLAYED, AsyncCase, Case, HangUp, Reply, Silence, Script, error


class CallsTest(Case):
    def refused(self, *script: Script) -> SubmissionManagerError:
        self.script[:] = script
        with self.assertRaises(SubmissionManagerError) as caught:
            self.client().intents.submit("a", "t", {"n": 1})
        return caught.exception

    def test_repeats_the_same_bytes_until_there_is_an_answer(self) -> None:
        self.script[:] = [HangUp(), error(503, "overloaded", "0"), Reply(502, b"<html>"), Reply(429), GOOD]
        client = self.client("secret")
        self.assertEqual(client.intents.submit("a", "t", {"text": "å", "n": 1}, wait_seconds=3), REPLAYED)
        self.assertEqual({asked.path for asked in self.asked}, {"/v1/intents?waitSeconds=3"})
        self.assertEqual({asked.headers["authorization"] for asked in self.asked}, {"Bearer secret"})
        body = '{"intentId":"a","submissionTarget":"t","payload":{"text":"å","n":1}}'.encode()
        self.assertEqual([asked.body for asked in self.asked], [body] * 5)

    def test_payloads_keep_their_bytes(self) -> None:
        raw = '{ "n": 1.00, "n": 2,\n "text": "\\u00e5" }'
        payloads: List[Tuple[Any, bytes]] = [
            (RawJson(raw), raw.encode()), (raw.encode(), raw.encode()), (raw, json.dumps(raw).encode()), (None, b"null"),
            ([], b"[]"), (False, b"false"), (0, b"0"),
        ]
        for payload, sent in payloads:
            self.script[:] = [GOOD]
            self.client().intents.submit("a", "t", payload)
            self.assertEqual(self.asked[-1].body, b'{"intentId":"a","submissionTarget":"t","payload":' + sent + b"}")
        self.script[:] = [GOOD]
        self.client().intents.submit("a", "t", not_before="2026-11-17T08:00:00Z")
        self.assertEqual(
            json.loads(self.asked[-1].body),
            {"intentId": "a", "submissionTarget": "t", "notBefore": "2026-11-17T08:00:00Z"},
        )

    def test_what_is_refused_for_good_is_not_repeated(self) -> None:
        kinds: List[Tuple[int, str, Type[SubmissionManagerError]]] = [(400, "invalid_request", errors.InvalidRequest), (401, "unauthorized", errors.Unauthorized),
                 (404, "management_node_not_found", errors.NotFound), (500, "internal_error", errors.InternalError),
                 (409, "idempotency_conflict", errors.IdempotencyConflict), (409, "new_code", SubmissionManagerError)]
        for status, code, kind in kinds:
            failure = self.refused(error(status, code, conflictingFields=["payload"]))
            self.assertIsInstance(failure, kind)
            self.assertEqual((failure.status, failure.code, failure.message), (status, code, "no"))
            self.assertEqual(failure.details, {"conflictingFields": ["payload"]})
        self.assertEqual(len(self.asked), len(kinds))

    def test_gives_up_in_the_end(self) -> None:
        failure = self.refused(*[error(503, "overloaded", "0")] * 5)
        self.assertIsInstance(failure, errors.Overloaded)
        self.assertEqual((failure.status, failure.retry_after, len(self.asked)), (503, 0.0, 5))
        self.assertIsInstance(self.refused(*[HangUp()] * 5), errors.Unreachable)

    def test_a_long_pause_is_for_the_caller_to_make(self) -> None:
        self.assertEqual(self.refused(error(503, "overloaded", "3600")).retry_after, 3600.0)
        self.assertEqual(len(self.asked), 1)

    def test_a_timeout_is_unreachable_and_repeated(self) -> None:
        self.script[:] = [Silence(), GOOD]
        self.assertEqual(self.client(timeout=0.1).intents.get("a"), INTENT)
        self.script[:] = [Silence()]
        with self.assertRaises(errors.Unreachable):
            self.client(timeout=0.1, max_retries=0).intents.get("a")

    def test_what_is_not_safe_to_repeat_is_not_repeated_after_a_lost_answer(self) -> None:
        client = self.client()
        replies: List[Script] = [HangUp(), error(503, "store_unavailable", "0"), Reply(502)]
        for reply in replies:
            self.script[:] = [reply]
            self.assertRaises(SubmissionManagerError, client.redrives.start, "r")
        self.assertEqual(len(self.asked), 3)
        self.script[:] = [error(503, "overloaded", "0"), Reply(200, {"redriveId": "r"})]
        self.assertEqual(client.redrives.start("r", rate_per_second=5)["redriveId"], "r")
        self.assertEqual(self.asked[-1].body, b'{"ratePerSecond":5}')

    def test_redirects_are_not_followed(self) -> None:
        for status in (301, 302, 303, 307, 308):
            failure = self.refused(Reply(status, b"", {"Location": f"{self.url}/elsewhere"}))
            self.assertEqual((failure.status, failure.code), (status, "unexpected_answer"))

    def test_answers_of_something_else(self) -> None:
        for status, body in ((200, b"<html> Welcome"), (200, b'["Welcome"]'), (404, b"<html> Welcome"), (404, b'{"error": "Welcome"}')):
            failure = self.refused(Reply(status, body))
            self.assertIsInstance(failure, errors.UnexpectedAnswer)
            self.assertEqual(failure.status, status)
            self.assertIn("Welcome", failure.message)

    def test_a_repetition_to_the_inbox_has_the_same_key(self) -> None:
        received = Reply(202, {"id": "x"})
        self.script[:] = [HangUp(), received, received, received]
        client = self.client()
        for key in (None, None, "form-1"):
            client.inbox.submit("acme", "form", {}, idempotency_key=key)
        keys = [asked.headers["idempotency-key"] for asked in self.asked]
        self.assertEqual(keys[0], keys[1])
        self.assertEqual((len(set(keys)), keys[3]), (3, "form-1"))

    def test_ids_are_encoded(self) -> None:
        self.script[:] = [GOOD]
        client = self.client()
        client.intents.get("a/../b?c å%2F")
        self.assertEqual(self.asked[0].path, "/v1/intents/a%2F..%2Fb%3Fc%20%C3%A5%252F")
        for text in ("", ".", ".."):
            self.assertRaises(errors.InvalidRequest, client.intents.get, text)

    def test_what_cannot_be_sent_is_an_error_of_the_client(self) -> None:
        half = "\ud83d"
        circle: List[Any] = []
        circle.append(circle)
        client = self.client()

        def submit(payload: Any) -> None:
            client.intents.submit("a", "t", payload)

        def to_inbox(key: str) -> None:
            client.inbox.submit("acme", "form", {}, idempotency_key=key)

        calls: List[Tuple[Callable[[Any], Any], Any]] = [
            (submit, {"text": half}),
            (submit, {half: 1}),
            (submit, float("nan")),
            (submit, {1, 2}),
            (submit, circle),
            (submit, RawJson('1,"submissionTarget":"other"')),
            (submit, b"\xff"),
            (to_inbox, "schlüssel-€"),
            (to_inbox, half),
            (to_inbox, "a\r\nX-Other: b"),
            (client.intents.get, half),
        ]
        for call, value in calls:
            with self.assertRaises(errors.InvalidRequest, msg=repr(value)) as caught:
                call(value)
            self.assertEqual(caught.exception.status, 0)
        self.assertEqual(self.asked, [])

    def test_every_answer_is_told_and_tokens_are_asked_for(self) -> None:
        told: List[Tuple[str, str, int, Optional[str]]] = []
        tokens = iter(["old", "new"])
        self.script[:] = [Reply(503), GOOD]
        client = self.client(
            lambda: next(tokens),
            on_answer=lambda method, url, status, headers: told.append((method, url, status, headers.get("retry-after"))),
        )
        client.intents.get("a")
        where = f"{self.url}/v1/intents/a"
        self.assertEqual(told, [("GET", where, 503, None), ("GET", where, 200, None)])
        self.assertEqual([asked.headers["authorization"] for asked in self.asked], ["Bearer old", "Bearer new"])

    def test_connections_are_kept(self) -> None:
        self.script[:] = [GOOD, error(404, "not_found"), GOOD]
        client = self.client()
        client.intents.get("a")
        self.assertRaises(errors.NotFound, client.intents.get, "b")
        client.intents.get("a")
        self.assertEqual(len({asked.connection for asked in self.asked}), 1)

    def test_a_list_fetches_its_pages_when_they_are_needed(self) -> None:
        first = Reply(200, {"intents": [{"intentId": "1"}, {"intentId": "2"}], "nextCursor": "c/1"})
        last = Reply(200, {"intents": [{"intentId": "3"}], "nextCursor": None})
        found = self.client().intents.list(status="exhausted", limit=2)
        self.assertEqual(self.asked, [])
        self.script[:] = [first, HangUp(), last]
        self.assertEqual([intent["intentId"] for intent in found], ["1", "2", "3"])
        paths = ["/v1/intents?status=exhausted&limit=2", *["/v1/intents?status=exhausted&limit=2&cursor=c%2F1"] * 2]
        self.assertEqual([asked.path for asked in self.asked], paths)
        self.script[:] = [Reply(200, {"something": "else"})]
        self.assertRaises(errors.UnexpectedAnswer, list, found)
        self.script[:] = [first, last]
        self.assertEqual([(len(page.items), page.next_cursor) for page in found.pages()], [(2, "c/1"), (1, None)])

    def test_wait_polls_until_the_end(self) -> None:
        done = {**INTENT, "status": "accepted"}
        self.script[:] = [GOOD, GOOD, GOOD, Reply(200, done)]
        self.assertEqual(self.client().intents.submit_and_wait("a", "t", timeout=5)["status"], "accepted")
        self.assertEqual([asked.path for asked in self.asked], ["/v1/intents?waitSeconds=5"] + ["/v1/intents/a"] * 3)
        self.script[:] = [GOOD]
        with self.assertRaises(errors.WaitTimeout) as caught:
            self.client().intents.wait("a", timeout=0)
        self.assertEqual(caught.exception.intent, INTENT)
        self.assertIsInstance(caught.exception, TimeoutError)

    def test_cancel_says_what_it_may(self) -> None:
        self.script[:] = [error(409, "attempt_in_progress"), Reply(202, {**INTENT, "mayHaveBeenSent": True})]
        client = self.client()
        self.assertRaises(errors.AttemptInProgress, client.intents.cancel, "a")
        self.assertTrue(client.intents.cancel("a", after_attempt=True)["mayHaveBeenSent"])
        self.assertEqual([asked.path for asked in self.asked], ["/v1/intents/a/cancel", "/v1/intents/a/cancel?afterAttempt=true"])

    def test_other_calls_are_possible(self) -> None:
        self.script[:] = [Reply(200, {"entries": []}), HangUp()]
        self.assertEqual(self.client().request("GET", "/v1/audit", query={"limit": 5}), {"entries": []})
        self.assertEqual(self.asked[0].path, "/v1/audit?limit=5")
        with self.assertRaises(errors.Unreachable):
            self.client().request("POST", "/v1/new", body={"a": 1})
        self.assertEqual(self.asked[1].body, b'{"a":1}')


class AsyncCallsTest(AsyncCase, CallsTest):
    pass


class RulesTest(unittest.TestCase):
    def test_pauses_grow_and_respect_retry_after(self) -> None:
        options, call = Options("http://a", None, 40, 4, None), Call("GET", "/")

        def pause(number: int, retry_after: Optional[float] = None) -> Optional[float]:
            return pause_before_retry(options, call, number, errors.Overloaded(503, "overloaded", "", None, retry_after))

        for number, (least, most) in enumerate([(0.125, 0.25), (0.25, 0.5), (0.5, 1), (1, 2)], 1):
            found = pause(number)
            assert found is not None
            self.assertTrue(least <= found <= most, found)
        found = pause(1, 1.0)
        assert found is not None
        self.assertTrue(1.125 <= found <= 1.25, found)
        self.assertIsNone(pause(5))
        self.assertIsNone(pause(1, 31.0))

    def test_batches_respect_both_limits(self) -> None:
        self.assertEqual(list(packed([], 3, 100)), [])
        self.assertEqual(list(packed([1] * 7, 3, 100)), [3, 3, 1])
        self.assertEqual(list(packed([40, 40, 40, 200, 1], 10, 100)), [2, 1, 1, 1])
        for sizes in ([10] * 50, list(range(1, 60))):
            start = 0
            for count in packed(sizes, 10, 100):
                body = _protocol.batch_body(b"x" * size for size in sizes[start:start + count])
                self.assertTrue(len(body) <= 100 or count == 1)
                start += count

    def test_urls_that_cannot_be(self) -> None:
        for url in ("", "127.0.0.1:8082", "ftp://example", "http://", "file:///etc/passwd", "http://a?b", "http://a:b", "http://user@a"):
            self.assertRaises(ValueError, Client, url)
        for url in ("https://submissions.example/below", "http://[::1]:8082/", "http://localhost"):
            Client(url)
        self.assertRaises(ValueError, Client, "http://a", "schlüssel")
        self.assertRaises(ValueError, Client, "http://a", max_retries=-1)

    def test_every_code_has_one_class(self) -> None:
        self.assertIsInstance(errors.error_of(410, "cursor_expired", ""), errors.CursorExpired)
        for name in dir(errors):
            kind = getattr(errors, name)
            if isinstance(kind, type) and issubclass(kind, SubmissionManagerError):
                self.assertIs(getattr(submission_manager, name), kind)

    def test_proxies_of_the_environment_are_used(self) -> None:
        with mock.patch.dict("os.environ", {"http_proxy": "http://127.0.0.1:9", "no_proxy": "local.example"}):
            with self.assertRaises(errors.Unreachable):
                Client("http://elsewhere.example", max_retries=0).intents.get("a")
            self.assertIsNone(Client("http://local.example")._transport._http._proxy)


if __name__ == "__main__":
    unittest.main()
