"""`client.inbox`: inbound submissions, and the contacts and messages that are made of them."""

from __future__ import annotations

from typing import Any, Optional, cast

from .. import models
from .._protocol import Call, encoded_object, new_key
from .paging import AsyncPager
from .transport import AsyncTransport


class AsyncInbox:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def submit(
        self,
        client_slug: str,
        channel: models.ChannelName,
        payload: Any,
        *,
        source_url: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> models.InboxReceived:
        """Submits to the inbox. Without an `idempotency_key` each call gets a new one, so that its retries are safe."""
        fields = {"client_slug": client_slug, "channel": channel, "source_url": source_url}
        call = Call(
            "POST", "/v1/inbox/submissions",
            body=encoded_object({**fields, "payload": b"null" if payload is None else payload}),
            headers={"Idempotency-Key": new_key() if idempotency_key is None else idempotency_key},
        )
        return cast(models.InboxReceived, await self._transport.json(call))

    async def get(self, id: str) -> models.InboxSubmissionDetail:
        """An inbox submission with its payload."""
        call = Call("GET", "/v1/inbox/submissions/{id}", path={"id": id})
        return cast(models.InboxSubmissionDetail, await self._transport.json(call))

    def list(
        self,
        client_slug: str,
        *,
        state: Optional[models.SubmissionStateName] = None,
        limit: Optional[int] = None,
    ) -> AsyncPager[models.InboxSubmission]:
        """Inbox submissions of a client, newest first."""
        query = {"client_slug": client_slug, "state": state, "limit": limit}
        return AsyncPager(self._transport, "/v1/inbox/submissions", "submissions", query)

    def contacts(self, client_slug: str, *, limit: Optional[int] = None) -> AsyncPager[models.InboxContact]:
        """Contacts of a client, newest first."""
        query = {"client_slug": client_slug, "limit": limit}
        return AsyncPager(self._transport, "/v1/inbox/contacts", "contacts", query)

    def messages(
        self, client_slug: str, *, contact_id: Optional[int] = None, limit: Optional[int] = None
    ) -> AsyncPager[models.InboxMessage]:
        """Messages of a client, newest first."""
        query = {"client_slug": client_slug, "contact_id": contact_id, "limit": limit}
        return AsyncPager(self._transport, "/v1/inbox/messages", "messages", query)

    async def reprocess(self, id: str) -> models.InboxSubmission:
        """Makes a failed inbox submission due now."""
        call = Call("POST", "/v1/inbox/submissions/{id}/reprocess", path={"id": id})
        return cast(models.InboxSubmission, await self._transport.json(call))

    async def reprocess_parked(self, client_slug: str) -> models.InboxReprocessed:
        """Makes up to a thousand parked submissions of a client due now; call it again while `more` is true."""
        call = Call("POST", "/v1/inbox/submissions/reprocess", query={"client_slug": client_slug})
        return cast(models.InboxReprocessed, await self._transport.json(call))
