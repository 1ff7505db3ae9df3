"""Files as views, for asyncio: files are read and written in a thread."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.aio.loop import Loop
from holdfast.views.directory import Views, ViewStatus
from holdfast.views.item import Finding


class AsyncViews:
    """A directory of view files; see `Views` for what each method does."""

    def __init__(self, loop: Loop, views: Views) -> None:
        self._loop = loop
        self.sync_views = views
        self.directory = views.directory

    @property
    def files(self) -> list[str]:
        return self.sync_views.files

    async def sync(self) -> list[Finding]:
        return await self._loop.hop_shielded(self.sync_views.sync)

    write = sync

    async def forget_read(self) -> None:
        await self._loop.hop_shielded(self.sync_views.forget_read)

    async def accept(self, file: str) -> list[Finding]:
        return await self._loop.hop_shielded(self.sync_views.accept, file)

    async def reject(self, file: str) -> list[Finding]:
        return await self._loop.hop_shielded(self.sync_views.reject, file)

    async def replace(self, file: str, text: bytes) -> list[Finding]:
        return await self._loop.hop_shielded(self.sync_views.replace, file, text)

    async def status(self) -> list[ViewStatus]:
        return await self._loop.hop(self.sync_views.status)

    def keep_fresh(self, tell: Callable[[Finding], object] | None = None) -> None:
        self.sync_views.keep_fresh(tell)

    async def close(self) -> None:
        await self._loop.hop_shielded(self.sync_views.close)

    async def __aenter__(self) -> AsyncViews:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
