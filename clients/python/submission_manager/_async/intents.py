"""`client.intents`: submit intents, follow them, cancel and redrive them."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Iterable, List, Optional, Sequence, cast

from .. import models
from .._batcher_async import AsyncBatcher
from .._protocol import (
    BATCH_BYTES, BATCH_ITEMS, NOT_GIVEN, BatchResult, Call, SubmittedIntent, backoff, batch_body, batch_results,
    encoded_item, encoded_object, encoded_submission, packed, submitted,
)
from ..errors import SubmissionManagerError, Unavailable, WaitTimeout
from .paging import AsyncPager
from .transport import AsyncTransport

# `wait` polls after 0.1 s at first, then less and less often.
FIRST_POLL, LONGEST_POLL = 0.1, 2.0
# The service holds a submission for at most this long.
LONGEST_WAIT_SECONDS = 30


class AsyncIntents:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def submit(
        self,
        intent_id: str,
        submission_target: str,
        payload: Any = NOT_GIVEN,
        *,
        not_before: Optional[str] = None,
        wait_seconds: Optional[int] = None,
        traceparent: Optional[str] = None,
    ) -> SubmittedIntent:
        """Submits an intent. Submitting the same again is safe: the intent comes back with `replayed` true.

        intent_id: your key for the intent, 1 to 200 characters
        submission_target: a target of the service's registry
        payload: any JSON value; `RawJson` or `bytes` are sent byte for byte; without it the payload is empty
        not_before: the time before which no attempt starts, such as 2026-11-17T08:00:00Z
        wait_seconds: waits until the first attempt has finished, at most this long and at most 30 s
        traceparent: W3C trace context, forwarded to the gateway
        """
        call = Call(
            "POST", "/v1/intents",
            query={"waitSeconds": wait_seconds},
            headers={"traceparent": traceparent},
            body=encoded_submission(intent_id, submission_target, payload, not_before),
        )
        return submitted(await self._transport.answer(call))

    async def submit_and_wait(
        self,
        intent_id: str,
        submission_target: str,
        payload: Any = NOT_GIVEN,
        *,
        not_before: Optional[str] = None,
        timeout: float = 60.0,
    ) -> models.Intent:
        """Submits an intent and waits until it has ended; raises `WaitTimeout` if it has not after `timeout` seconds."""
        until = time.monotonic() + timeout
        seconds = max(0, min(int(timeout), LONGEST_WAIT_SECONDS))
        intent = await self.submit(
            intent_id, submission_target, payload, not_before=not_before, wait_seconds=seconds
        )
        if intent["status"] != "pending":
            return intent
        return await self.wait(intent_id, timeout=max(0.0, until - time.monotonic()))

    async def wait(self, intent_id: str, *, timeout: float = 60.0) -> models.Intent:
        """Waits until an intent has ended; raises `WaitTimeout` if it has not after `timeout` seconds.

        It polls. To learn what became of many intents, follow `client.events` instead.
        """
        until = time.monotonic() + timeout
        pause = FIRST_POLL
        while True:
            intent = await self.get(intent_id)
            left = until - time.monotonic()
            if intent["status"] != "pending":
                return intent
            if left <= 0:
                error = WaitTimeout(0, "wait_timeout", f"{intent_id} is still pending after {timeout:g} s")
                error.intent = intent
                raise error
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.0), left))
            pause = min(pause * 1.5, LONGEST_POLL)

    async def submit_batch(
        self, submissions: Iterable[models.SubmitRequest], *, traceparent: Optional[str] = None
    ) -> List[BatchResult]:
        """Submits many intents and returns a result for each, in order. One that fails does not affect the others.

        More than 1,000 intents or 8 MiB are divided into several requests. Intents that are refused because the service
        is overloaded are submitted again. If the first request fails as a whole, its error is raised; if a later one
        does, the remaining results have the error. Submitting the same intents again is safe.
        """
        items = [encoded_item(each) for each in submissions]
        results: List[BatchResult] = []
        for count in packed(map(len, items), BATCH_ITEMS, BATCH_BYTES):
            try:
                results += await self._send_batch(items[len(results):len(results) + count], traceparent)
            except SubmissionManagerError as error:
                if not results:
                    raise
                return results + [BatchResult(None, error)] * (len(items) - len(results))
        return results

    async def _send_batch(self, items: Sequence[bytes], traceparent: Optional[str] = None) -> List[BatchResult]:
        """Sends one batch, and again those of its items that were refused for a while."""
        results = await self._send_once(items, traceparent)
        for number in range(1, self._transport.options.max_retries + 1):
            refused = [index for index, result in enumerate(results) if isinstance(result.error, Unavailable)]
            if not refused:
                break
            await asyncio.sleep(backoff(number))
            try:
                again = await self._send_once([items[index] for index in refused], traceparent)
            except SubmissionManagerError:
                break  # after retries of its own; the results say which items were refused
            for index, result in zip(refused, again):
                results[index] = result
        return results

    async def _send_once(self, items: Sequence[bytes], traceparent: Optional[str]) -> List[BatchResult]:
        call = Call("POST", "/v1/intents/batch", body=batch_body(items), headers={"traceparent": traceparent})
        return batch_results(await self._transport.answer(call), len(items))

    def batcher(
        self,
        *,
        max_items: int = BATCH_ITEMS,
        max_bytes: int = BATCH_BYTES,
        max_delay: float = 0.02,
        max_waiting: int = 10 * BATCH_ITEMS,
        concurrency: int = 1,
    ) -> AsyncBatcher:
        """Collects single submissions into batches; see `AsyncBatcher`."""
        return AsyncBatcher(
            self._send_batch, max_items=max_items, max_bytes=max_bytes, max_delay=max_delay, max_waiting=max_waiting,
            concurrency=concurrency,
        )

    async def get(self, intent_id: str) -> models.Intent:
        """An intent and its status; raises `NotFound`."""
        call = Call("GET", "/v1/intents/{intentId}", path={"intentId": intent_id})
        return cast(models.Intent, await self._transport.json(call))

    async def history(self, intent_id: str) -> models.History:
        """An intent with all its attempts and its webhook event."""
        call = Call("GET", "/v1/intents/{intentId}/history", path={"intentId": intent_id})
        return cast(models.History, await self._transport.json(call))

    def list(
        self,
        *,
        q: Optional[str] = None,
        status: Optional[models.StatusName] = None,
        submission_target: Optional[str] = None,
        redrive_id: Optional[str] = None,
        created_after: Optional[str] = None,
        created_before: Optional[str] = None,
        limit: Optional[int] = None,
    ) -> AsyncPager[models.Intent]:
        """Intents, newest first; pages are fetched as you iterate.

        q: first the intents with exactly this gateway message id, then those whose id starts with it
        limit: the size of a page: 50 by default, at most 200
        """
        query = {
            "q": q, "status": status, "submissionTarget": submission_target, "redriveId": redrive_id,
            "createdAfter": created_after, "createdBefore": created_before, "limit": limit,
        }
        return AsyncPager(self._transport, "/v1/intents", "intents", query)

    async def cancel(self, intent_id: str, *, after_attempt: bool = False) -> models.CancelledIntent:
        """Cancels an intent that waits for an attempt.

        `mayHaveBeenSent` of the answer is false if its gateway cannot have received it. Raises `AttemptInProgress`
        unless `after_attempt` is set; then the attempt finishes, and no further one starts. Raises `AlreadyTerminal` if
        the intent has ended for another reason.
        """
        call = Call(
            "POST", "/v1/intents/{intentId}/cancel",
            path={"intentId": intent_id}, query={"afterAttempt": after_attempt or None},
        )
        return cast(models.CancelledIntent, await self._transport.json(call))

    async def redrive(self, intent_id: str, payload: Any = NOT_GIVEN) -> models.Intent:
        """Sends one failed intent again, as a new intent, with its old payload or another one."""
        body = b"{}" if payload is NOT_GIVEN else encoded_object({"payload": _null_or(payload)})
        call = Call(
            "POST", "/v1/intents/{intentId}/redrive", path={"intentId": intent_id}, body=body, repeatable=False
        )
        return cast(models.Intent, await self._transport.json(call))

    async def redeliver_webhook(self, intent_id: str) -> models.Webhook:
        """Makes the webhook event of an intent due now, whether or not it was delivered before."""
        call = Call("POST", "/v1/intents/{intentId}/webhook/redeliver", path={"intentId": intent_id})
        return cast(models.Webhook, await self._transport.json(call))


def _null_or(payload: Any) -> Any:
    return b"null" if payload is None else payload
