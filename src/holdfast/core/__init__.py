"""The core: one append-only log, the state that its events fold to, and who may write to it."""
