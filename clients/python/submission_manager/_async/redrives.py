"""`client.redrives`: send failed intents again, in bulk."""

from __future__ import annotations

from typing import Optional, cast

from .. import models
from .._protocol import Call, encoded_object
from .paging import AsyncPager
from .transport import AsyncTransport


class AsyncRedrives:
    """Changes of a redrive are not repeated after a lost answer: a repeated `start` would be `InvalidState`. Use `get`."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def plan(
        self,
        filter: models.RedriveFilter,
        *,
        include_unknown_outcome: bool = False,
        note: Optional[str] = None,
    ) -> models.Redrive:
        """Plans a redrive. Nothing is sent; a plan that is not started is deleted after a day."""
        body = encoded_object({"filter": filter, "includeUnknownOutcome": include_unknown_outcome or None, "note": note})
        # A plan that was made twice does nothing.
        return cast(models.Redrive, await self._transport.json(Call("POST", "/v1/redrives", body=body)))

    async def start(self, redrive_id: str, *, rate_per_second: Optional[int] = None) -> models.Redrive:
        """Starts a plan: 1 to 1,000 intents a second, 10 by default."""
        return await self._change(
            "/v1/redrives/{redriveId}/start", redrive_id, encoded_object({"ratePerSecond": rate_per_second})
        )

    async def pause(self, redrive_id: str) -> models.Redrive:
        """Stops creating intents until `resume`."""
        return await self._change("/v1/redrives/{redriveId}/pause", redrive_id)

    async def resume(self, redrive_id: str) -> models.Redrive:
        """Goes on with a paused redrive."""
        return await self._change("/v1/redrives/{redriveId}/resume", redrive_id)

    async def cancel(self, redrive_id: str) -> models.Redrive:
        """Ends a redrive; the intents that it created stay."""
        return await self._change("/v1/redrives/{redriveId}/cancel", redrive_id)

    async def get(self, redrive_id: str) -> models.Redrive:
        """A redrive with its state and progress."""
        call = Call("GET", "/v1/redrives/{redriveId}", path={"redriveId": redrive_id})
        return cast(models.Redrive, await self._transport.json(call))

    def list(self, *, limit: Optional[int] = None) -> AsyncPager[models.Redrive]:
        """All redrives, newest first."""
        return AsyncPager(self._transport, "/v1/redrives", "redrives", {"limit": limit})

    async def _change(self, template: str, redrive_id: str, body: Optional[bytes] = None) -> models.Redrive:
        call = Call("POST", template, path={"redriveId": redrive_id}, body=body, repeatable=False)
        return cast(models.Redrive, await self._transport.json(call))
