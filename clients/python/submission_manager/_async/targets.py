"""`client.targets`: which targets there are, and pausing them."""

from __future__ import annotations

from typing import List, Optional, cast

from .. import models
from .._protocol import Call, encoded_object
from .transport import AsyncTransport


class AsyncTargets:
    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> List[models.Target]:
        """All targets, in order of their names."""
        found = await self._transport.json(Call("GET", "/v1/targets"))
        return cast(List[models.Target], found["targets"])

    async def pause(self, submission_target: str, *, reason: Optional[str] = None) -> models.Target:
        """Lets no attempt of the target start until `resume`. Pausing it again has no effect, not even on the reason."""
        body = encoded_object({"reason": reason}) if reason else None
        return await self._change("/v1/targets/{submissionTarget}/pause", submission_target, body)

    async def resume(self, submission_target: str) -> models.Target:
        """Lets attempts of the target start again."""
        return await self._change("/v1/targets/{submissionTarget}/resume", submission_target)

    async def _change(self, template: str, submission_target: str, body: Optional[bytes] = None) -> models.Target:
        call = Call("POST", template, path={"submissionTarget": submission_target}, body=body)
        return cast(models.Target, await self._transport.json(call))
