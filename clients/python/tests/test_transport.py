"""What the client promises whatever the service does, held against a server that does as it is told.

    PYTHONPATH=clients/python python3 -m unittest discover clients/python/tests
"""

from __future__ import annotations

import json
import threading
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple
from unittest import mock

from submission_manager import Client, SubmissionManagerError, models
from submission_manager import transport

INTENT = {"intentId": "a", "submissionTarget": "t", "createdAt": "2026-11-16T09:00:00.000000Z", "status": "pending"}
ASKED: models.SubmitRequest = {"intentId": "a", "submissionTarget": "t", "payload": {"text": "å", "n": 1}}
# Status, headers, body; None hangs up.
Answer = Optional[Tuple[int, Dict[str, str], bytes]]


def error(status: int, code: str, headers: Optional[Dict[str, str]] = None, **details: Any) -> Answer:
    return status, headers or {}, json.dumps({"error": {"code": code, "message": "no", "details": details}}).encode()


GOOD: Answer = (200, {"Idempotent-Replayed": "true"}, json.dumps(INTENT).encode())


class Asked:
    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.path = handler.path
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        self.body = handler.rfile.read(int(self.headers.get("content-length", "0")))


class TransportTest(unittest.TestCase):
    def setUp(self) -> None:
        self.answers: List[Answer] = []
        self.asked: List[Asked] = []
        case = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                case.asked.append(Asked(self))
                answer = case.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, body = answer
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        sleep = mock.patch("time.sleep")
        self.sleep = sleep.start()
        self.addCleanup(sleep.stop)

    def pauses(self) -> List[float]:
        return [call.args[0] for call in self.sleep.call_args_list]

    def refused(self, *answers: Answer) -> SubmissionManagerError:
        self.answers[:] = answers
        with self.assertRaises(SubmissionManagerError) as caught:
            Client(self.url).submit_intent(ASKED)
        return caught.exception

    def test_repeats_the_same_bytes_until_there_is_an_answer(self) -> None:
        self.answers[:] = [None, error(503, "overloaded", {"Retry-After": "1"}), (502, {}, b"<html>"), (429, {}, b""), GOOD]
        self.assertEqual(Client(self.url, "secret").submit_intent(ASKED, wait_seconds=3), INTENT)
        self.assertEqual({asked.path for asked in self.asked}, {"/v1/intents?waitSeconds=3"})
        self.assertEqual({asked.headers["authorization"] for asked in self.asked}, {"Bearer secret"})
        body = '{"intentId":"a","submissionTarget":"t","payload":{"text":"å","n":1}}'.encode()
        self.assertEqual([asked.body for asked in self.asked], [body] * 5)
        for pause, (least, most) in zip(self.pauses(), [(0.125, 0.25), (1.25, 1.5), (0.5, 1), (1, 2)]):
            self.assertTrue(least <= pause <= most, pause)

    def test_what_is_refused_for_good_is_not_repeated(self) -> None:
        for status, code in ((400, "invalid_request"), (401, "unauthorized"), (409, "idempotency_conflict"), (500, "x")):
            failure = self.refused(error(status, code, conflictingFields=["payload"]))
            self.assertEqual((failure.status, failure.code, failure.message), (status, code, "no"))
            self.assertEqual(failure.details, {"conflictingFields": ["payload"]})
        self.assertEqual(self.pauses(), [])

    def test_gives_up_in_the_end(self) -> None:
        failure = self.refused(*[error(503, "overloaded", {"Retry-After": "1"})] * 5)
        self.assertEqual((failure.status, failure.code, failure.retry_after), (503, "overloaded", 1.0))
        self.assertEqual(len(self.asked), transport.DEFAULT_TRIES)
        self.assertEqual(self.refused(None, None, None, None, None).code, "unreachable")

    def test_a_long_pause_is_the_callers_to_make(self) -> None:
        self.assertEqual(self.refused(error(503, "overloaded", {"Retry-After": "3600"})).retry_after, 3600.0)
        self.assertEqual(self.pauses(), [])

    def test_redirects_are_not_followed(self) -> None:
        for status in (301, 302, 303, 307, 308):
            failure = self.refused((status, {"Location": f"{self.url}/elsewhere"}, b""))
            self.assertEqual((failure.status, failure.code), (status, "unexpected_answer"))

    def test_answers_of_something_else(self) -> None:
        for status, body in ((200, b"<html> Welcome"), (404, b"<html> Welcome"), (404, b'{"error": "Welcome"}')):
            failure = self.refused((status, {}, body))
            self.assertEqual((failure.status, failure.code), (status, "unexpected_answer"))
            self.assertIn("Welcome", failure.message)

    def test_a_repetition_to_the_inbox_has_the_same_key(self) -> None:
        received: Answer = (202, {}, b'{"id": "x"}')
        self.answers[:] = [None, received, received, received]
        client = Client(self.url)
        for key in (None, None, "form-1"):
            client.submit_to_inbox({"client_slug": "acme", "channel": "form", "payload": {}}, idempotency_key=key)
        keys = [asked.headers["idempotency-key"] for asked in self.asked]
        self.assertEqual(keys[0], keys[1])
        self.assertEqual((len(set(keys)), keys[3]), (3, "form-1"))

    def test_ids_are_encoded(self) -> None:
        self.answers[:] = [GOOD]
        Client(self.url + "/").get_intent("a/../b?c å%2F")
        self.assertEqual(self.asked[0].path, "/v1/intents/a%2F..%2Fb%3Fc%20%C3%A5%252F")
        for text in ("", ".", ".."):
            self.assertRaises(ValueError, Client(self.url).get_intent, text)

    def test_what_cannot_be_sent_is_an_error_of_the_client(self) -> None:
        half = "\ud83d"
        circle: List[Any] = []
        circle.append(circle)
        client = Client(self.url)

        def submit(payload: Any) -> None:
            client.submit_intent({"intentId": "a", "submissionTarget": "t", "payload": payload})

        def to_inbox(key: str) -> None:
            client.submit_to_inbox({"client_slug": "acme", "channel": "form", "payload": {}}, idempotency_key=key)

        def jobs_of(tenant: str) -> None:
            client.list_jobs(tenant_id=tenant)

        calls: List[Tuple[Callable[[Any], Any], Any]] = [
            (submit, {"text": half}),
            (submit, {half: 1}),
            (submit, float("nan")),
            (submit, {1, 2}),
            (submit, circle),
            (to_inbox, "schlüssel-€"),
            (to_inbox, half),
            (to_inbox, "a\r\nX-Other: b"),
            (client.get_intent, half),
            (jobs_of, half),
        ]
        for call, value in calls:
            with self.assertRaises(SubmissionManagerError) as caught:
                call(value)
            self.assertEqual((caught.exception.status, caught.exception.code), (0, "invalid_request"), repr(value))
        self.assertEqual(self.asked, [])
        self.assertRaises(ValueError, Client, self.url, "schlüssel")

    def test_every_answer_is_told(self) -> None:
        told: List[Tuple[str, str, int, Optional[str]]] = []
        self.answers[:] = [(503, {}, b""), GOOD]

        def seen(method: str, url: str, status: int, headers: Mapping[str, str]) -> None:
            told.append((method, url, status, headers.get("idempotent-replayed")))

        client = Client(self.url, on_answer=seen)
        client.get_intent("a")
        where = f"{self.url}/v1/intents/a"
        self.assertEqual(told, [("GET", where, 503, None), ("GET", where, 200, "true")])

    def test_urls_that_cannot_be(self) -> None:
        for url in ("", "127.0.0.1:8082", "ftp://example", "http://", "file:///etc/passwd", "http://a?b", "http://a:b", "http://user@a"):
            self.assertRaises(ValueError, Client, url)
        for url in ("https://submissions.example/below", "http://[::1]:8082/", "http://localhost"):
            Client(url)


if __name__ == "__main__":
    unittest.main()
