"""HTTP for the async client, with httpx: the standard library has no HTTP client for asyncio."""

from __future__ import annotations

import ssl
from typing import AsyncIterator, Optional

try:
    import httpx
except ImportError as error:  # pragma: no cover
    raise ImportError("AsyncClient needs httpx: pip install 'submission-manager-client[async]'") from error

from ._protocol import Request, no_answer


class AsyncStream:
    """An answer whose body is still to be read."""

    def __init__(self, response: httpx.Response, url: str) -> None:
        self._response = response
        self._url = url
        self._chunks: Optional[AsyncIterator[bytes]] = None
        self.status = response.status_code
        self.headers = {name.lower(): value for name, value in response.headers.items()}

    async def read(self) -> bytes:
        """Reads the whole body and returns the connection to the pool."""
        try:
            return await self._response.aread()
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise no_answer(self._url, _reason(error)) from None
        finally:
            await self.close()

    async def chunk(self) -> bytes:
        """Reads what has arrived; empty at the end."""
        if self._chunks is None:
            self._chunks = self._response.aiter_raw()
        try:
            return await self._chunks.__anext__()
        except StopAsyncIteration:
            return b""
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise no_answer(self._url, _reason(error)) from None

    async def close(self) -> None:
        await self._response.aclose()


class AsyncHttp:
    """Makes requests."""

    def __init__(self, url: str, timeout: float, tls: Optional[ssl.SSLContext]) -> None:
        self._timeout = timeout
        self._client = httpx.AsyncClient(verify=tls or True, follow_redirects=False, timeout=timeout)

    async def open(self, request: Request, timeout: Optional[float] = None) -> AsyncStream:
        """Sends a request; raises `Unreachable` if there is no answer."""
        made = self._client.build_request(
            request.method, request.url, headers=request.headers, content=request.body, timeout=timeout or self._timeout
        )
        try:
            return AsyncStream(await self._client.send(made, stream=True), request.url)
        except httpx.HTTPError as error:
            raise no_answer(request.url, _reason(error)) from None

    async def close(self) -> None:
        await self._client.aclose()


def _reason(error: Exception) -> str:
    # Timeouts of httpx have no message.
    return str(error) or type(error).__name__
