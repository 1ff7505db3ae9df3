"""Documents of contexts for prompts."""

from __future__ import annotations

from typing import Any

from holdfast.context.parts import PromptContext


def context_document(
    scope: str, context: PromptContext, written: str | None = None, changed: bool | None = None
) -> dict[str, Any]:
    """Returns a context, what is in it, what is not, and the file that it was written to."""
    return {
        "scope": scope,
        "text": context.text,
        "tokens": context.tokens,
        "budget": context.budget,
        "exact": context.is_exact,
        "counted_by": context.counted_by,
        "parts": [
            {"kind": part.kind, "id": part.id, "text": part.text, "required": part.required}
            for part in context.parts
        ],
        "left_out": [
            {"kind": one.kind, "count": one.count, "where": one.where, "ids": list(one.ids)}
            for one in context.left_out
        ],
        "written": written,
        "changed": changed,
    }
