"""Conversations to token ids with room for media. Knows chat templates and placeholder tokens; encodes no media."""

from mm_pipeline.prompt.chat import ChatPrompter, MediaSlot, Prompt
from mm_pipeline.prompt.expand import (
    ExpandedPrompt,
    MediaItem,
    MediaShape,
    MediaSpan,
    expand,
    num_prompt_tokens,
)
from mm_pipeline.prompt.layout import ExpansionSettings, VideoLayout
from mm_pipeline.prompt.special_tokens import SpecialTokens

__all__ = [
    "ChatPrompter",
    "ExpandedPrompt",
    "ExpansionSettings",
    "MediaItem",
    "MediaShape",
    "MediaSlot",
    "MediaSpan",
    "Prompt",
    "SpecialTokens",
    "VideoLayout",
    "expand",
    "num_prompt_tokens",
]
