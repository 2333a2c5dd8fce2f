"""`client.jobs`: jobs of tenants for management nodes. Every call needs a token of the tenant."""

from __future__ import annotations

from typing import Optional, cast

from .. import models
from .._protocol import Call, encoded
from .events import AsyncEventFeed
from .paging import AsyncPager
from .transport import AsyncTransport


class AsyncJobs:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def submit(self, command: models.JobCommand, *, traceparent: Optional[str] = None) -> models.JobAccepted:
        """Submits a job. Its `idempotency_key` makes repeating it safe: the first answer comes back."""
        call = Call("POST", "/v1/jobs", body=encoded(command), headers={"traceparent": traceparent})
        return cast(models.JobAccepted, await self._transport.json(call))

    async def get(self, submission_id: str) -> models.Job:
        """A job and its status; raises `NotFound`, also if it belongs to another tenant."""
        call = Call("GET", "/v1/jobs/{submission_id}", path={"submission_id": submission_id})
        return cast(models.Job, await self._transport.json(call))

    async def history(self, submission_id: str) -> models.JobHistory:
        """A job with all its attempts."""
        call = Call("GET", "/v1/jobs/{submission_id}/history", path={"submission_id": submission_id})
        return cast(models.JobHistory, await self._transport.json(call))

    def list(
        self,
        tenant_id: str,
        *,
        workspace_id: Optional[str] = None,
        job_id: Optional[str] = None,
        status: Optional[models.StatusName] = None,
        limit: Optional[int] = None,
    ) -> AsyncPager[models.Job]:
        """Jobs of a tenant, newest first; pages are fetched as you iterate."""
        query = {
            "tenant_id": tenant_id, "workspace_id": workspace_id, "job_id": job_id, "status": status, "limit": limit,
        }
        return AsyncPager(self._transport, "/v1/jobs", "jobs", query, "next_cursor")

    async def cancel(self, submission_id: str, *, after_attempt: bool = False) -> models.CancelledJob:
        """Cancels a job that waits for an attempt, by the rules of `intents.cancel`."""
        call = Call(
            "POST", "/v1/jobs/{submission_id}/cancel",
            path={"submission_id": submission_id}, query={"afterAttempt": after_attempt or None},
        )
        return cast(models.CancelledJob, await self._transport.json(call))

    def events(
        self,
        tenant_id: str,
        *,
        workspace_id: Optional[str] = None,
        after: Optional[str] = None,
        streaming: bool = True,
    ) -> AsyncEventFeed[models.JobEvent]:
        """Follows the events of a tenant's jobs, by server-sent events or by long polls; see `client.events`."""
        query = {"tenant_id": tenant_id, "workspace_id": workspace_id}
        return AsyncEventFeed(
            self._transport, "/v1/jobs/events", "/v1/jobs/events/stream", query, after, streaming,
            ("wait_seconds", "next_cursor"),
        )
