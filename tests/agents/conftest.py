"""Agents in runs, on every backend."""

from __future__ import annotations

from tests.runs.conftest import durable_url, hf, url

__all__ = ["durable_url", "hf", "url"]
