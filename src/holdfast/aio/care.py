"""The rooms that look after a store, for asyncio: retention, subjects, keys, schemas, search."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.aio.loop import Reading
from holdfast.aio.mirror import Mirror, mirror, mirror_read, plain
from holdfast.aio.scope import AsyncScope
from holdfast.core.expiry import ExpiryPolicy
from holdfast.core.redaction import Mode
from holdfast.erasure import ErasureReceipt
from holdfast.keys import KeysRoom
from holdfast.record.retention_policies import RetentionPolicy
from holdfast.retention import RetentionRoom
from holdfast.schemas import SchemasRoom
from holdfast.search import SearchRoom
from holdfast.secrets import SecretsRoom
from holdfast.subjects import SubjectsRoom


class AsyncRetentionRoom(Mirror[RetentionRoom]):
    """Removes data that nobody can ask for any more; see `RetentionRoom`."""

    @property
    def policies(self) -> Sequence[RetentionPolicy]:
        return self.sync.policies

    @property
    def expiry(self) -> Reading[dict[str, ExpiryPolicy]]:
        return Reading(lambda: self._loop.hop(lambda: self.sync.expiry))

    async def hold(self, scope: AsyncScope | str, reason: str | None = None) -> None:
        await self._loop.hop_shielded(self.sync.hold, plain(scope), reason)

    async def unhold(self, scope: AsyncScope | str) -> None:
        await self._loop.hop_shielded(self.sync.unhold, plain(scope))

    async def bring_back(self, scope: AsyncScope | str) -> int:
        return await self._loop.hop_shielded(self.sync.bring_back, plain(scope))

    run = mirror(RetentionRoom.run)
    preview = mirror_read(RetentionRoom.preview)
    past = mirror_read(RetentionRoom.past)
    holds = mirror_read(RetentionRoom.holds)
    bin = mirror_read(RetentionRoom.bin)
    expire = mirror(RetentionRoom.expire)
    on_close = mirror(RetentionRoom.on_close)


class AsyncSubjectsRoom(Mirror[SubjectsRoom]):
    """The subjects whose data is in the store, and how to erase it; see `SubjectsRoom`."""

    def pseudonym(self, text: str) -> str:
        return self.sync.pseudonym(text)

    async def erase(
        self,
        subject: str | None = None,
        *,
        scope: AsyncScope | str | None = None,
        match: str | None = None,
        ignore_case: bool = False,
        dry_run: bool = False,
        wait_s: float = 60.0,
    ) -> ErasureReceipt:
        return await self._loop.hop_shielded(
            self.sync.erase,
            subject,
            scope=plain(scope),
            match=match,
            ignore_case=ignore_case,
            dry_run=dry_run,
            wait_s=wait_s,
        )

    list = mirror_read(SubjectsRoom.list)
    get = mirror_read(SubjectsRoom.get)
    hold = mirror(SubjectsRoom.hold)
    unhold = mirror(SubjectsRoom.unhold)
    finish = mirror(SubjectsRoom.finish)
    readmit = mirror(SubjectsRoom.readmit)
    receipts = mirror_read(SubjectsRoom.receipts)


class AsyncKeysRoom(Mirror[KeysRoom]):
    """The keys of a store that is encrypted at rest; see `KeysRoom`."""

    status = mirror_read(KeysRoom.status)
    rotate = mirror(KeysRoom.rotate)
    rewrap = mirror(KeysRoom.rewrap)


class AsyncSecretsRoom(Mirror[SecretsRoom]):
    """What happens to secrets in what is written; see `SecretsRoom`."""

    guard = mirror(SecretsRoom.guard)

    @property
    def rules(self) -> dict[str, Mode]:
        return self.sync.rules


class AsyncSchemasRoom(Mirror[SchemasRoom]):
    """The schemas of states, and migrations; see `SchemasRoom`."""

    list = mirror(SchemasRoom.list)
    migrate = mirror(SchemasRoom.migrate)


class AsyncSearchRoom(Mirror[SearchRoom]):
    """Search over everything recorded by meaning, links and SQL; see `SearchRoom`."""

    sql = mirror(SearchRoom.sql)
    similar = mirror(SearchRoom.similar)
    resolve = mirror(SearchRoom.resolve)
    dangling_links = mirror(SearchRoom.dangling_links)
    status = mirror(SearchRoom.status)
    rebuild = mirror(SearchRoom.rebuild)
    tables = mirror(SearchRoom.tables)
