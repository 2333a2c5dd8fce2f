"""Automatic batching for the async client. The sync client has its own (_batcher_sync.py), because it needs threads."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Awaitable, Callable, Deque, List, Optional, Sequence, Set, Tuple

from ._protocol import BATCH_BYTES, BATCH_ITEMS, NOT_GIVEN, BatchResult, SubmittedIntent, encoded_submission
from .errors import error_of


class AsyncBatcher:
    """Collects submissions and sends them as batches.

    A batch is sent when it has `max_items` or `max_bytes`, or `max_delay` seconds after its first submission.
    `submit` returns a future for the result of that submission alone. While `max_waiting` submissions wait, `submit`
    waits too, so memory stays bounded. Leaving the `async with` block sends the rest and waits for all results.
    """

    def __init__(
        self,
        send: Callable[[Sequence[bytes]], Awaitable[List[BatchResult]]],
        *,
        max_items: int,
        max_bytes: int,
        max_delay: float,
        max_waiting: int,
        concurrency: int,
    ) -> None:
        if not (1 <= max_items <= BATCH_ITEMS and 1 <= max_bytes <= BATCH_BYTES and max_waiting >= 1 and concurrency >= 1):
            raise ValueError(f"a batch has 1 to {BATCH_ITEMS} items and at most {BATCH_BYTES} bytes")
        self._send = send
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._max_delay = max_delay
        self._max_waiting = max_waiting
        self._slots = asyncio.Semaphore(concurrency)
        self._waiting: Deque[Tuple[bytes, "asyncio.Future[SubmittedIntent]"]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._flushing = False
        self._closed = False
        self._worker: Optional["asyncio.Task[None]"] = None
        self._sending: Set["asyncio.Task[None]"] = set()

    async def submit(
        self, intent_id: str, submission_target: str, payload: Any = NOT_GIVEN, *, not_before: Optional[str] = None
    ) -> "asyncio.Future[SubmittedIntent]":
        """Adds a submission; waits only while too many are waiting. Await the future for its intent or its error."""
        item = encoded_submission(intent_id, submission_target, payload, not_before)
        if len(item) + 3 > self._max_bytes:
            raise error_of(0, "payload_too_large", f"{intent_id} is larger than a batch", {"maxBytes": self._max_bytes})
        while len(self._waiting) >= self._max_waiting and not self._closed:
            self._room.clear()
            await self._room.wait()
        if self._closed:
            raise RuntimeError("the batcher is closed")
        future: "asyncio.Future[SubmittedIntent]" = asyncio.get_running_loop().create_future()
        # An error that nobody awaits is not reported by asyncio: `flush` and `close` wait for all, and raise none.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append((item, future))
        self._bytes += len(item) + 1
        if self._worker is None:
            self._worker = asyncio.ensure_future(self._work())
        self._changed.set()
        return future

    async def flush(self) -> None:
        """Sends what waits and returns when every submission has its result."""
        while self._waiting or self._sending:
            self._flushing = True
            self._changed.set()
            waited: List["asyncio.Future[Any]"] = [future for _, future in self._waiting]
            await asyncio.wait([*waited, *self._sending])
        self._flushing = False

    async def close(self) -> None:
        """Sends what waits, waits for all results, and ends."""
        self._closed = True
        self._room.set()
        await self.flush()
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def __aenter__(self) -> "AsyncBatcher":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._flushing = False
                self._changed.clear()
                await self._changed.wait()
            await self._slots.acquire()
            await self._until_full()
            batch = self._take()
            self._room.set()
            sending = asyncio.ensure_future(self._deliver(batch))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _until_full(self) -> None:
        """Waits until there is a whole batch, or the time is over."""
        until = asyncio.get_running_loop().time() + self._max_delay
        while not (self._flushing or len(self._waiting) >= self._max_items or self._bytes >= self._max_bytes):
            self._changed.clear()
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                return
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except asyncio.TimeoutError:
                return

    def _take(self) -> List[Tuple[bytes, "asyncio.Future[SubmittedIntent]"]]:
        batch: List[Tuple[bytes, "asyncio.Future[SubmittedIntent]"]] = []
        total = 2
        while self._waiting and len(batch) < self._max_items and total + len(self._waiting[0][0]) + 1 <= self._max_bytes:
            batch.append(self._waiting.popleft())
            total += len(batch[-1][0]) + 1
        self._bytes -= total - 2
        return batch

    async def _deliver(self, batch: List[Tuple[bytes, "asyncio.Future[SubmittedIntent]"]]) -> None:
        try:
            results = await self._send([item for item, _ in batch])
            for (_, future), result in zip(batch, results):
                if future.done():
                    continue  # its caller has cancelled it
                if result.intent is not None:
                    future.set_result(result.intent)
                elif result.error is not None:
                    future.set_exception(result.error)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._slots.release()
