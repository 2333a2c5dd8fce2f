"""The event feed: cursors, reconnection, broken streams, half an event."""

from __future__ import annotations

import json
import threading
import time
import unittest
from typing import Any, List, Optional

from submission_manager import errors
from submission_manager._protocol import SseParser

from support import AsyncCase, Case, HangUp, Pieces, Reply, error


def event(number: int) -> Any:
    return {"eventId": f"e{number}", "eventType": "intent.terminal", "occurredAt": "2026-11-16T09:00:00Z", "intent": {}}


def sse(*numbers: int) -> bytes:
    return b"".join(b"id: c%d\nevent: intent.terminal\ndata: %s\n\n" % (n, json.dumps(event(n)).encode()) for n in numbers)


def page(after: str, *numbers: int) -> Reply:
    return Reply(200, {"events": [event(number) for number in numbers], "nextCursor": after})


class EventsTest(Case):
    def read(self, feed: Any, count: int) -> List[str]:
        return [next(feed)["eventId"] for _ in range(count)]

    def last_ids(self) -> List[Optional[str]]:
        return [asked.headers.get("last-event-id") for asked in self.asked]

    def test_a_stream_goes_on_where_it_broke(self) -> None:
        # A comment, an event in two pieces; then it breaks in the middle of the third event.
        whole = b": hello\n\n" + sse(1)
        self.script[:] = [
            Pieces([whole[:30], whole[30:], sse(2) + sse(3)[:20]], cut=True),
            HangUp(),
            Pieces([sse(3)]),
            Pieces([sse(4)]),
        ]
        with self.client().events.stream(submission_target="t") as feed:
            self.assertIsNone(feed.cursor)
            self.assertEqual(self.read(feed, 2), ["e1", "e2"])
            self.assertEqual(feed.cursor, "c2")
            self.assertEqual(self.read(feed, 2), ["e3", "e4"])
        self.assertEqual(self.last_ids(), [None, "c2", "c2", "c3"])
        self.assertEqual({asked.path for asked in self.asked}, {"/v1/events/stream?submissionTarget=t"})

    def test_the_cursor_is_the_one_of_the_event_that_was_read_last(self) -> None:
        self.script[:] = [Pieces([sse(1, 2, 3)])]
        with self.client().events.stream(after="c0") as feed:
            self.assertEqual(feed.cursor, "c0")
            for number in (1, 2, 3):
                self.assertEqual(self.read(feed, 1), [f"e{number}"])
                self.assertEqual(feed.cursor, f"c{number}")

    def test_now_is_a_cursor_before_the_stream_begins(self) -> None:
        self.script[:] = [page("c7"), HangUp(), Pieces([sse(8)])]
        with self.client().events.stream(after="now") as feed:
            self.assertEqual(self.read(feed, 1), ["e8"])
        self.assertEqual(self.asked[0].path, "/v1/events?after=now&limit=1")
        self.assertEqual(self.last_ids(), [None, "c7", "c7"])

    def test_polling_goes_on_after_failures(self) -> None:
        self.script[:] = [page("c2", 1, 2), error(503, "overloaded", "0"), HangUp(), page("c2"), page("c3", 3)]
        with self.client().events.poll(limit=2) as feed:
            self.assertEqual(self.read(feed, 1), ["e1"])
            self.assertIsNone(feed.cursor)
            self.assertEqual(self.read(feed, 1), ["e2"])
            self.assertEqual(feed.cursor, "c2")
            self.assertEqual(self.read(feed, 1), ["e3"])
            self.assertEqual(feed.cursor, "c3")
        paths = ["/v1/events?limit=2&waitSeconds=30"] + ["/v1/events?limit=2&after=c2&waitSeconds=30"] * 4
        self.assertEqual([asked.path for asked in self.asked], paths)

    def test_the_first_connection_is_not_tried_for_ever(self) -> None:
        for feed in (self.client(max_retries=2).events.stream(), self.client(max_retries=2).events.poll()):
            self.asked.clear()
            self.script[:] = [HangUp()] * 3
            self.assertRaises(errors.Unreachable, next, feed)
            self.assertEqual(len(self.asked), 3)

    def test_a_feed_that_was_connected_reconnects_without_a_limit(self) -> None:
        self.script[:] = [Pieces([sse(1)]), *[HangUp()] * 7, Pieces([sse(2)])]
        with self.client(max_retries=0).events.stream() as feed:
            self.assertEqual(self.read(feed, 2), ["e1", "e2"])

    def test_errors_that_last_are_raised(self) -> None:
        for status, code, kind in ((410, "cursor_expired", errors.CursorExpired), (401, "unauthorized", errors.Unauthorized)):
            self.script[:] = [Pieces([sse(1)]), error(status, code)]
            with self.client().events.stream() as feed:
                self.read(feed, 1)
                self.assertRaises(kind, next, feed)
        self.script[:] = [Pieces([b"data: <html>\n\n"])]
        self.assertRaises(errors.UnexpectedAnswer, next, self.client().events.stream())

    def test_one_page(self) -> None:
        self.script[:] = [page("c2", 2)]
        found = self.client().events.list(after="c1", limit=10, wait_seconds=5, submission_target="t")
        self.assertEqual((found["events"][0]["eventId"], found["nextCursor"]), ("e2", "c2"))
        self.assertEqual(self.asked[0].path, "/v1/events?after=c1&limit=10&waitSeconds=5&submissionTarget=t")

    def test_events_of_jobs(self) -> None:
        job = {"event_id": "e1", "event_type": "job.terminal", "job": {}}
        self.script[:] = [Pieces([b"id: j1\ndata: %s\n\n" % json.dumps(job).encode()]), Reply(200, {"events": [job], "next_cursor": "j2"})]
        with self.client().jobs.events("acme") as feed:
            self.assertEqual((next(feed), feed.cursor), (job, "j1"))
        with self.client().jobs.events("acme", workspace_id="w1", after="j1", streaming=False) as feed:
            self.assertEqual((next(feed), feed.cursor), (job, "j2"))
        paths = ["/v1/jobs/events/stream?tenant_id=acme", "/v1/jobs/events?tenant_id=acme&workspace_id=w1&after=j1&wait_seconds=30"]
        self.assertEqual([asked.path for asked in self.asked], paths)


class AsyncEventsTest(AsyncCase, EventsTest):
    pass


class ThreadsTest(Case):
    def test_another_thread_may_close_a_feed_that_waits(self) -> None:
        self.script[:] = [Pieces([sse(1)]), Pieces([b": hello\n\n"], hold=True)]
        feed = self.client().events.stream()
        next(feed)

        def close() -> None:
            while len(self.asked) < 2 or feed._stream is None:
                time.sleep(0.001)
            feed.close()

        threading.Thread(target=close).start()
        self.assertEqual(list(feed), [])


class ParserTest(unittest.TestCase):
    def test_pieces_of_any_size_give_the_same_events(self) -> None:
        text = b": hi\r\n\r\nid: 1\r\nevent: x\r\ndata: a\r\ndata:b\r\n\r\nid:2\rdata: c\r\rid: 3\n\ndata: \xc3\xa5\n\nretry: 9\n\ndata: half"
        expected = [("1", "a\nb"), ("2", "c"), ("3", None), (None, "å")]
        for size in (1, 2, 3, 7, len(text)):
            parser = SseParser()
            found = [each for start in range(0, len(text), size) for each in parser.feed(text[start:start + size])]
            self.assertEqual(found, expected, size)
            self.assertEqual(parser.retry, 0.009)

    def test_an_event_without_end_is_an_error(self) -> None:
        parser = SseParser()
        with self.assertRaises(errors.UnexpectedAnswer):
            for _ in range(2000):
                list(parser.feed(b"x" * 1024))


if __name__ == "__main__":
    unittest.main()
