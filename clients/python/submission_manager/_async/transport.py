"""Sends requests, retries them, and turns answers into JSON or errors."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Optional

from .._http_async import AsyncHttp, AsyncStream
from .._protocol import Answer, Call, Options, error_of_answer, pause_before_retry, request_of
from ..errors import SubmissionManagerError


class AsyncTransport:
    """What all resources of a client share. It follows no redirect, because the token would be sent to the other host."""

    def __init__(self, options: Options, tls: Optional[ssl.SSLContext]) -> None:
        self.options = options
        self._http = AsyncHttp(options.url, options.timeout, tls)

    async def json(self, call: Call) -> Any:
        """The JSON of the answer."""
        return (await self.answer(call)).json()

    async def answer(self, call: Call) -> Answer:
        """The answer, after as many retries as are allowed; raises the last error."""
        number = 0
        while True:
            try:
                return await self.once(call)
            except SubmissionManagerError as error:
                number += 1
                pause = pause_before_retry(self.options, call, number, error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    async def open(self, call: Call, timeout: float) -> AsyncStream:
        """An answer whose body is read piece by piece; one try. `timeout` is the longest silence."""
        request = request_of(self.options, call)
        stream = await self._http.open(request, timeout)
        self._tell(call, request.url, stream)
        if 200 <= stream.status < 300:
            return stream
        raise error_of_answer(Answer(stream.status, stream.headers, await stream.read()))

    async def once(self, call: Call) -> Answer:
        """The answer of one try."""
        request = request_of(self.options, call)
        stream = await self._http.open(request)
        answer = Answer(stream.status, stream.headers, await stream.read())
        self._tell(call, request.url, stream)
        if 200 <= answer.status < 300:
            return answer
        raise error_of_answer(answer)

    def _tell(self, call: Call, url: str, stream: AsyncStream) -> None:
        if self.options.on_answer:
            self.options.on_answer(call.method, url, stream.status, stream.headers)

    async def close(self) -> None:
        await self._http.close()
