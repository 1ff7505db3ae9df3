"""AgentFS's key-value store: values of 1,000 bytes under 1,000 keys, written in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from typing import Any

from agentfs_sdk import AgentFS, AgentFSOptions

from bench.messages import KEYS, SAID, messages


class Keys:
    """kv.set and kv.get, with the settings it comes with."""

    release = f"agentfs-sdk {version('agentfs-sdk')}"

    def __init__(self, path: str, *, size: int = SAID) -> None:
        self.runner = asyncio.Runner()
        self._files = self.runner.run(AgentFS.open(AgentFSOptions(path=path)))
        self._values = messages(size)
        self._sets, self._gets = count(), count()
        self.operations: dict[str, Callable[[], Any]] = {"set": self.set, "get": self.get}

    async def set(self) -> None:
        await self._files.kv.set(f"key {next(self._sets) % KEYS}", next(self._values))

    async def get(self) -> None:
        found = await self._files.kv.get(f"key {next(self._gets) * 7 % KEYS}")
        assert found["role"] == "user"

    def close(self) -> None:
        self.runner.run(self._files.close())
        self.runner.close()
