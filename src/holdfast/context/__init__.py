"""What an agent is given to begin with: the record of a scope as one text, under a budget."""

from holdfast.context.parts import LeftOut, PromptContext, PromptPart, Strategy

__all__ = ["LeftOut", "PromptContext", "PromptPart", "Strategy"]
