"""Conversations to token ids with room for media. Knows chat templates and placeholder tokens; encodes no media."""

from mm_pipeline.prompt.chat import ChatPrompter, MediaSlot, Prompt
from mm_pipeline.prompt.expand import ExpandedPrompt, MediaSpan, expand
from mm_pipeline.prompt.special_tokens import SpecialTokens

__all__ = ["ChatPrompter", "ExpandedPrompt", "MediaSlot", "MediaSpan", "Prompt", "SpecialTokens", "expand"]
