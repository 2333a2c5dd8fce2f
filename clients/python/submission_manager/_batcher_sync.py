"""Automatic batching for the sync client, in threads. The async client has its own (_batcher_async.py)."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any, Callable, Deque, List, Optional, Sequence, Tuple

from ._protocol import BATCH_BYTES, BATCH_ITEMS, NOT_GIVEN, BatchResult, SubmittedIntent, encoded_submission
from .errors import error_of


class Batcher:
    """Collects submissions and sends them as batches.

    A batch is sent when it has `max_items` or `max_bytes`, or `max_delay` seconds after its first submission.
    `submit` returns a future for the result of that submission alone. While `max_waiting` submissions wait, `submit`
    waits too, so memory stays bounded. Leaving the `with` block sends the rest and waits for all results. Several
    threads may use one batcher; it sends in `concurrency` threads of its own.
    """

    def __init__(
        self,
        send: Callable[[Sequence[bytes]], List[BatchResult]],
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
        self._waiting: Deque[Tuple[bytes, "Future[SubmittedIntent]"]] = deque()
        self._bytes = 0
        self._sending = 0
        self._flushing = 0
        self._closed = False
        # One condition for everything that changes here.
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(concurrency)]
        for thread in self._threads:
            thread.start()

    def submit(
        self, intent_id: str, submission_target: str, payload: Any = NOT_GIVEN, *, not_before: Optional[str] = None
    ) -> "Future[SubmittedIntent]":
        """Adds a submission; waits only while too many are waiting. The future has its intent or its error."""
        item = encoded_submission(intent_id, submission_target, payload, not_before)
        if len(item) + 3 > self._max_bytes:
            raise error_of(0, "payload_too_large", f"{intent_id} is larger than a batch", {"maxBytes": self._max_bytes})
        future: "Future[SubmittedIntent]" = Future()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) < self._max_waiting)
            if self._closed:
                raise RuntimeError("the batcher is closed")
            self._waiting.append((item, future))
            self._bytes += len(item) + 1
            # Threads need to know of the first one, and of a full batch.
            if len(self._waiting) == 1 or self._is_full():
                self._changed.notify_all()
        return future

    def flush(self) -> None:
        """Sends what waits and returns when every submission has its result."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and self._sending == 0)
            self._flushing -= 1

    def close(self) -> None:
        """Sends what waits, waits for all results, and ends the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> "Batcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_full(self) -> bool:
        return len(self._waiting) >= self._max_items or self._bytes >= self._max_bytes

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if not self._waiting:
                    return
                until = time.monotonic() + self._max_delay
                while self._waiting and not (self._closed or self._flushing or self._is_full()):
                    left = until - time.monotonic()
                    if left <= 0 or not self._changed.wait(left):
                        break
                batch = self._take()
                self._sending += 1
                self._changed.notify_all()
            self._deliver(batch)
            with self._changed:
                self._sending -= 1
                self._changed.notify_all()

    def _take(self) -> List[Tuple[bytes, "Future[SubmittedIntent]"]]:
        batch: List[Tuple[bytes, "Future[SubmittedIntent]"]] = []
        total = 2
        while self._waiting and len(batch) < self._max_items and total + len(self._waiting[0][0]) + 1 <= self._max_bytes:
            batch.append(self._waiting.popleft())
            total += len(batch[-1][0]) + 1
        self._bytes -= total - 2
        return batch

    def _deliver(self, batch: List[Tuple[bytes, "Future[SubmittedIntent]"]]) -> None:
        # A future that was cancelled before now is not sent.
        batch = [(item, future) for item, future in batch if future.set_running_or_notify_cancel()]
        try:
            results = self._send([item for item, _ in batch]) if batch else []
            for (_, future), result in zip(batch, results):
                if result.intent is not None:
                    future.set_result(result.intent)
                else:
                    future.set_exception(result.error)
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
