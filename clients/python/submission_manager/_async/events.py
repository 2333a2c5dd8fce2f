"""The event feed: what became of intents, in the order of the commits that ended them."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, Deque, Dict, Generic, List, Mapping, Optional, Tuple, TypeVar, cast

from .. import models
from .._http_async import AsyncStream
from .._protocol import (
    LONGEST_PAUSE, Call, SseParser, backoff, is_worth_repeating, unexpected,
)
from ..errors import SubmissionManagerError, error_of
from .transport import AsyncTransport

E = TypeVar("E")

# The service sends a comment every 15 s; after three of them are missing, the connection is broken.
LONGEST_SILENCE = 45.0
# The longest time for which the service holds a long poll.
POLL_SECONDS = 30


class AsyncEventFeed(Generic[E]):
    """An endless iterator over events that reconnects by itself and keeps the cursor.

    `cursor` is the place after the last event that you got. Store it when you have handled the event, and pass it as
    `after` to go on there after a restart: you miss nothing, and get nothing twice.

    If the first connection fails, the feed raises the error after the usual retries. A feed that was connected before
    reconnects until it succeeds, with growing pauses of up to 30 s. Errors that a retry cannot change are raised:
    `CursorExpired`, `Unauthorized`, `Forbidden`, `InvalidRequest`.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        path: str,
        stream_path: str,
        query: Mapping[str, Any],
        after: Optional[str],
        streaming: bool,
        names: Tuple[str, str],
    ) -> None:
        self.cursor = after
        self._transport = transport
        self._path = path
        self._stream_path = stream_path
        self._query = query
        self._streaming = streaming
        self._wait_name, self._next_name = names
        self._ready: Deque[Tuple[Optional[str], Optional[Dict[str, Any]]]] = deque()
        self._stream: Optional[AsyncStream] = None
        self._parser = SseParser()
        self._failures = 0
        self._was_connected = False
        self._closed = False

    def __aiter__(self) -> "AsyncEventFeed[E]":
        return self

    async def __anext__(self) -> E:
        while not self._closed:
            while self._ready:
                cursor, event = self._ready.popleft()
                self.cursor = cursor or self.cursor
                if event is not None:
                    return cast(E, event)
            await self._fill()
        raise StopAsyncIteration

    async def close(self) -> None:
        """Ends the feed and its connection."""
        self._closed = True
        await self._drop()

    async def __aenter__(self) -> "AsyncEventFeed[E]":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fill(self) -> None:
        """Waits for more. Failures end here, unless a retry cannot change them."""
        try:
            if self._streaming:
                await self._read()
            else:
                await self._poll()
        except SubmissionManagerError as error:
            await self._drop()
            if self._closed:
                return
            if not is_worth_repeating(error):
                raise
            self._failures += 1
            if not self._was_connected and self._failures > self._transport.options.max_retries:
                raise
            pause = max(backoff(self._failures) + (error.retry_after or 0.0), self._parser.retry)
            await asyncio.sleep(min(pause, LONGEST_PAUSE))

    async def _poll(self) -> None:
        wait = 0 if self.cursor == "now" else POLL_SECONDS
        events, after = await self._page({**self._query, "after": self.cursor, self._wait_name: wait})
        self._connected()
        # The cursor is the one after the whole page, so it is only right for the last event.
        self._ready.extend((None, event) for event in events[:-1])
        self._ready.append((after, events[-1] if events else None))

    async def _page(self, query: Mapping[str, Any]) -> Tuple[List[Dict[str, Any]], str]:
        answer = await self._transport.once(Call("GET", self._path, query=query))
        page = answer.json()
        if not isinstance(page.get("events"), list) or not isinstance(page.get(self._next_name), str):
            raise unexpected(answer)
        return page["events"], page[self._next_name]

    async def _read(self) -> None:
        if self._stream is None:
            if self.cursor == "now":
                # A cursor instead of "now": otherwise what happens during a reconnection would be lost.
                _, self.cursor = await self._page({**self._query, "after": "now", "limit": 1})
                return
            self._parser = SseParser()
            call = Call(
                "GET", self._stream_path, query=self._query, accept="text/event-stream",
                headers={"Last-Event-ID": self.cursor, "Cache-Control": "no-store"},
            )
            self._stream = await self._transport.open(call, LONGEST_SILENCE)
        chunk = await self._stream.chunk()
        if not chunk:
            # A clean end: the instance stops, or this reader was too slow. Another instance has the same events.
            raise error_of(0, "unreachable", "the stream has ended")
        self._connected()
        for cursor, data in self._parser.feed(chunk):
            self._ready.append((cursor, _event(data)))

    def _connected(self) -> None:
        self._failures, self._was_connected = 0, True

    async def _drop(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


def _event(data: Optional[str]) -> Optional[Dict[str, Any]]:
    """The event that the data of a server-sent event stands for, if it is one."""
    if data is None:
        return None
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise error_of(200, "unexpected_answer", f"the data of an event is not JSON: {data[:200]!r}")
    return event


class AsyncEvents:
    """`client.events`: terminal events of all intents."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(
        self,
        *,
        after: Optional[str] = None,
        limit: Optional[int] = None,
        wait_seconds: Optional[int] = None,
        submission_target: Optional[str] = None,
    ) -> models.EventList:
        """One page of events, for readers that keep the cursor themselves.

        after: `nextCursor` of the page before; `now` starts at the end, None at the oldest event that is kept
        wait_seconds: waits until there is an event, at most this long and at most 30 s
        """
        query = {"after": after, "limit": limit, "waitSeconds": wait_seconds, "submissionTarget": submission_target}
        return cast(models.EventList, await self._transport.json(Call("GET", "/v1/events", query=query)))

    def stream(
        self, *, after: Optional[str] = None, submission_target: Optional[str] = None
    ) -> AsyncEventFeed[models.Event]:
        """Follows the feed by server-sent events. `after` is as in `list`."""
        return self._feed(after, {"submissionTarget": submission_target}, True)

    def poll(
        self, *, after: Optional[str] = None, submission_target: Optional[str] = None, limit: Optional[int] = None
    ) -> AsyncEventFeed[models.Event]:
        """Follows the feed by long polls, for networks whose proxies hold streams back. `after` is as in `list`.

        The cursor moves after the last event of each page, so after a restart up to `limit` events may come again.
        """
        return self._feed(after, {"submissionTarget": submission_target, "limit": limit}, False)

    def _feed(self, after: Optional[str], query: Mapping[str, Any], streaming: bool) -> AsyncEventFeed[models.Event]:
        names = ("waitSeconds", "nextCursor")
        return AsyncEventFeed(self._transport, "/v1/events", "/v1/events/stream", query, after, streaming, names)
