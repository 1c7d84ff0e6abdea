"""Conversations to token ids through a checkpoint's own chat template.

Only the template may write special tokens. One typed by a user stays text: it is cut out before rendering, and
comes back as the plain tokens of its letters. A conversation without such text is tokenised exactly as transformers
does.
Knows tokenizer files; knows no media bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jinja2
from tokenizers import Tokenizer

from mm_pipeline.prompt.special_tokens import SpecialTokens

# Unicode noncharacters, which no text should hold; `_free_mark` makes sure of it.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"


@dataclass(frozen=True, kw_only=True)
class MediaSlot:
    """Where media item `index` (in order of appearance) goes, with whatever the template wrote around it."""

    index: int
    modality: str


Prompt: TypeAlias = "tuple[list[int] | MediaSlot, ...]"


class ChatPrompter:
    """Thread-safe. `from_folder` reads an ordinary tokenizer folder."""

    def __init__(self, tokenizer: Any, tokens: SpecialTokens) -> None:
        """tokenizer: a transformers fast tokenizer with a chat template."""
        self._tokenizer = tokenizer
        self._tokens = tokens
        added = sorted(
            {str(token) for token in tokenizer.added_tokens_decoder.values()}, key=len, reverse=True
        )
        # What a text may end or begin with that the rest of a special token can complete.
        self._heads = frozenset(token[:n] for token in added for n in range(1, len(token)))
        self._tails = frozenset(token[n:] for token in added for n in range(1, len(token)))
        self._longest_part = max(map(len, self._heads), default=0)
        self._added_pattern = re.compile("|".join(map(re.escape, added))) if added else None
        # The same tokenizer without its added tokens, so that their spelling is nothing special to it.
        plain = json.loads(tokenizer.backend_tokenizer.to_str())
        plain["added_tokens"] = []
        plain["post_processor"] = None
        self._plain = Tokenizer.from_str(json.dumps(plain))

    @classmethod
    def from_folder(cls, folder: Path) -> ChatPrompter:
        """Reads tokenizer files and config.json. Raises ValueError without a chat template or special token ids."""
        # Late: transformers is slow to import, and only this constructor needs it.
        from transformers import PreTrainedTokenizerFast

        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        if not tokenizer.chat_template:
            raise ValueError("the checkpoint has no chat template; add chat_template.jinja to its folder")
        config = json.loads((Path(folder) / "config.json").read_text())
        return cls(tokenizer, SpecialTokens.from_config(config))

    def render(self, messages: Sequence[dict[str, Any]]) -> Prompt:
        """Token ids and media slots of a conversation, ending where the assistant begins to speak.

        messages: {"role": ..., "content": str or list of {"type": "text", "text": ...} and {"type": modality}}.
        Raises ValueError when the template refuses the conversation or has no place for one of its media parts.
        """
        ids = self._tokenise(messages)
        pieces: list[list[int] | MediaSlot] = []
        first, found = 0, 0
        expected = [part["type"] for part in _parts(messages) if part["type"] != "text"]
        for at, token_id in enumerate(ids):
            modality = self._tokens.modality_of_pad(token_id)
            if modality is None:
                continue
            surrounded = (
                0 < at < len(ids) - 1
                and ids[at - 1] in self._tokens.starts
                and ids[at + 1] in self._tokens.ends
            )
            pieces.append(ids[first : at - surrounded])
            pieces.append(MediaSlot(index=found, modality=modality))
            first, found = at + 1 + surrounded, found + 1
        pieces.append(ids[first:])
        slots = [piece.modality for piece in pieces if isinstance(piece, MediaSlot)]
        if slots != expected:
            raise ValueError(
                f"the conversation has media {expected or 'none'}, "
                f"but the chat template made places for {slots or 'none'}"
            )
        return tuple(piece for piece in pieces if piece != [])

    def encode_text(self, text: str) -> list[int]:
        """Token ids of a text on its own, with nothing added; the spelling of a special token stays text."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def _tokenise(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        texts = [part["text"] for part in _parts(messages) if part["type"] == "text"]
        mark = _free_mark(texts)
        rendered, cuts = self._render_cut(messages, mark, edges=False)
        if any(self._has_partial_edge(text) for text in texts):
            # Two texts, or a text and the template, may spell a special token together. Where cutting the texts'
            # ends as well takes a special token away, it was such a one.
            safer, safer_cuts = self._render_cut(messages, mark, edges=True)
            if self._special_tokens_of(rendered) != self._special_tokens_of(safer):
                rendered, cuts = safer, safer_cuts
        ids: list[int] = []
        pieces = re.split(f"{_OPEN}{re.escape(mark)}([0-9]+){_CLOSE}", rendered)
        for index, piece in enumerate(pieces):
            if index % 2:
                ids += self._plain.encode(cuts[int(piece)], add_special_tokens=False).ids
            elif piece:
                ids += self._tokenizer.encode(piece, add_special_tokens=False)
        return ids

    def _render_cut(
        self, messages: Sequence[dict[str, Any]], mark: str, *, edges: bool
    ) -> tuple[str, list[str]]:
        """The rendered conversation with numbered marks for what was cut out of users' texts, and those cuts."""
        cuts: list[str] = []

        def cut(text: str) -> str:
            cuts.append(text)
            return f"{_OPEN}{mark}{len(cuts) - 1}{_CLOSE}"

        def clean(text: str) -> str:
            if self._added_pattern is not None:
                text = self._added_pattern.sub(lambda match: cut(match.group()), text)
            if edges and text:
                tail = max((n for n in self._lengths(text) if text[-n:] in self._heads), default=0)
                if tail:
                    text = text[:-tail] + cut(text[-tail:])
                head = max((n for n in self._lengths(text) if text[:n] in self._tails), default=0)
                if head:
                    text = cut(text[:head]) + text[head:]
            return text

        cleaned = [
            {
                **message,
                "content": clean(message["content"])
                if isinstance(message["content"], str)
                else [
                    {"type": "text", "text": clean(part["text"])}
                    if part["type"] == "text"
                    else {"type": part["type"]}
                    for part in message["content"]
                ],
            }
            for message in messages
        ]
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                cleaned, tokenize=False, add_generation_prompt=True
            )
        except jinja2.TemplateError as error:
            raise ValueError(f"the chat template refuses the conversation: {error}") from error
        return rendered, cuts

    def _has_partial_edge(self, text: str) -> bool:
        return any(text[-n:] in self._heads or text[:n] in self._tails for n in self._lengths(text))

    def _lengths(self, text: str) -> range:
        """Of the parts of special tokens that can be at a text's edge."""
        return range(1, min(len(text), self._longest_part) + 1)

    def _special_tokens_of(self, rendered: str) -> list[str]:
        return self._added_pattern.findall(rendered) if self._added_pattern is not None else []


def _parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _free_mark(texts: Iterable[str]) -> str:
    """A mark that no text contains."""
    joined = "\n".join(texts)
    number = 0
    while f"{_OPEN}{number}:" in joined:
        number += 1
    return f"{number}:"
