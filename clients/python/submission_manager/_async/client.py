"""The client: its settings, and the resources of the service."""

from __future__ import annotations

import ssl
from typing import Any, Mapping, Optional

from .._protocol import DEFAULT_MAX_RETRIES, DEFAULT_TIMEOUT, Call, OnAnswer, Options, Token, encoded
from .events import AsyncEvents
from .inbox import AsyncInbox
from .intents import AsyncIntents
from .jobs import AsyncJobs
from .redrives import AsyncRedrives
from .targets import AsyncTargets
from .transport import AsyncTransport


class AsyncClient:
    """A client of the Submission Manager for asyncio.

    It keeps connections; use it as a context manager or call `close`. Errors are `SubmissionManagerError`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8082",
        token: Token = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = DEFAULT_MAX_RETRIES,
        on_answer: Optional[OnAnswer] = None,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        """
        url: the base URL of the service, such as https://submissions.example
        token: a bearer token, if the service requires one, or a function that returns the one that is valid now
        timeout: how many seconds one try may wait for data from the service
        max_retries: how often a call is repeated at most, if there is no answer or one that asks for it
        on_answer: called for every answer with method, URL, status and headers: for logs and metrics
        tls: a TLS context, for certificate authorities of your own
        """
        self._transport = AsyncTransport(Options(url, token, timeout, max_retries, on_answer), tls)
        self.intents = AsyncIntents(self._transport)
        self.events = AsyncEvents(self._transport)
        self.redrives = AsyncRedrives(self._transport)
        self.targets = AsyncTargets(self._transport)
        self.jobs = AsyncJobs(self._transport)
        self.inbox = AsyncInbox(self._transport)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Optional[Mapping[str, Any]] = None,
        body: Any = None,
        repeatable: Optional[bool] = None,
    ) -> Any:
        """Makes a call that this client has no method for, and returns its JSON.

        path: the path, with its ids already encoded, such as /v1/intents/order-1001
        repeatable: whether it may be retried after a lost answer; by default only GET is
        """
        call = Call(
            method, path.replace("{", "%7B"), query=query or {}, body=None if body is None else encoded(body),
            repeatable=method == "GET" if repeatable is None else repeatable,
        )
        return await self._transport.json(call)

    async def close(self) -> None:
        """Closes the connections."""
        await self._transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
