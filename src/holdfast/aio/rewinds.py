"""Rewind points, for asyncio."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.aio.mirror import Mirror, mirror, plain
from holdfast.aio.scope import AsyncScope
from holdfast.git.rewinds import RewindPoint, Rewinds


class AsyncRewinds(Mirror[Rewinds]):
    """What `hf.git()` returns; see `Rewinds` for what each method does."""

    async def mark(
        self, name: str, scopes: Iterable[AsyncScope | str] = (), *, files: bool | None = None
    ) -> RewindPoint:
        named = [plain(one) for one in scopes]
        return await self._loop.hop_shielded(self.sync.mark, name, named, files=files)

    list = mirror(Rewinds.list)
    find = mirror(Rewinds.find)
    interrupted = mirror(Rewinds.interrupted)
    preview = mirror(Rewinds.preview)
    preview_file = mirror(Rewinds.preview_file)
    preview_undo = mirror(Rewinds.preview_undo)
    apply = mirror(Rewinds.apply)
    rewind = mirror(Rewinds.rewind)
    undo = mirror(Rewinds.undo)
