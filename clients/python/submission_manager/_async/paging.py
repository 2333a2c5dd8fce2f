"""Lists that fetch their pages as they are read."""

from __future__ import annotations

from typing import Any, AsyncIterator, Generic, Mapping, Optional, TypeVar

from .._protocol import Call, Page, unexpected
from .transport import AsyncTransport

T = TypeVar("T")


class AsyncPager(Generic[T]):
    """All items of a list. Iterate over it, or over `pages()`; it may be iterated several times, each from the start."""

    def __init__(
        self, transport: AsyncTransport, path: str, key: str, query: Mapping[str, Any], next_key: str = "nextCursor"
    ) -> None:
        self._transport = transport
        self._path = path
        self._key = key
        self._query = query
        self._next_key = next_key

    async def page(self, cursor: Optional[str] = None) -> Page[T]:
        """One page: the first one, or the one after a `next_cursor`."""
        query = {**self._query, "cursor": cursor} if cursor else self._query
        answer = await self._transport.answer(Call("GET", self._path, query=query))
        found = answer.json()
        if self._key not in found:
            raise unexpected(answer)
        return Page(found[self._key], found.get(self._next_key))

    async def pages(self) -> AsyncIterator[Page[T]]:
        """All pages."""
        page: Page[T] = await self.page()
        while True:
            yield page
            if page.next_cursor is None:
                return
            page = await self.page(page.next_cursor)

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.items:
                yield item
