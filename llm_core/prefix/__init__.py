"""Prompts that begin alike share their pages. Integers only; torch is not imported here."""

from llm_core.prefix.keys import PageKey, page_keys
from llm_core.prefix.tree import Match, PrefixTree

__all__ = ["Match", "PageKey", "PrefixTree", "page_keys"]
