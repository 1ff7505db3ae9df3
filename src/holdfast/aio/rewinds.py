"""Points to go back to, for asyncio."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.aio.loop import Loop
from holdfast.aio.record import mirror
from holdfast.aio.scope import AsyncScope
from holdfast.git.rewinds import RewindPoint, Rewinds


class AsyncRewinds:
    """What `store.rewinds()` returns; see `Rewinds` for what each method does."""

    def __init__(self, loop: Loop, rewinds: Rewinds) -> None:
        self._loop = loop
        self.sync = rewinds

    def __repr__(self) -> str:
        return f"<Async{repr(self.sync)[1:]}"

    async def mark(
        self, name: str, scopes: Iterable[AsyncScope | str] = (), *, files: bool | None = None
    ) -> RewindPoint:
        named = [one.sync if isinstance(one, AsyncScope) else one for one in scopes]
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
