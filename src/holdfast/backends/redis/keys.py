"""The names of a store's keys. All have one hash tag, so a cluster keeps them in one slot."""

from __future__ import annotations

_PER_INDEX = ("marks", "order", "due", "ready", "held", "claims")


class Keys:
    """The keys of one application."""

    def __init__(self, application: str) -> None:
        self.root = root = f"holdfast:{{{application}}}"
        self.heads = f"{root}:heads"
        self.streams = f"{root}:streams"
        self.log = f"{root}:log"
        self.leases = f"{root}:leases"
        self.indexes = f"{root}:indexes"

    def events(self, stream: str) -> str:
        return f"{self.root}:events:{stream}"

    def keys(self, stream: str) -> str:
        return f"{self.root}:keys:{stream}"

    def checkpoints(self, stream: str) -> str:
        return f"{self.root}:checkpoints:{stream}"

    def named(self, stream: str) -> str:
        return f"{self.root}:named:{stream}"

    def of_index(self, index: str) -> list[str]:
        """Returns every key that a mark of this index may be in."""
        return [self.indexes, *(f"{self.root}:{name}:{index}" for name in _PER_INDEX)]

    def object(self, kind: str, name: str) -> str:
        return f"{self.root}:object:{kind}:{name}"

    def objects(self, kind: str) -> str:
        return f"{self.root}:objects:{kind}"

    def expiring(self, kind: str) -> str:
        return f"{self.root}:expiring:{kind}"

    def token(self, token: str) -> str:
        return f"{self.root}:token:{token}"
