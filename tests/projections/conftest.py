"""Projections on every backend."""

from __future__ import annotations

from tests.record.conftest import durable, hf, url

__all__ = ["durable", "hf", "url"]
