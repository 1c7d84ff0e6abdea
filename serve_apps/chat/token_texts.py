"""Single tokens as text and bytes, for log-probabilities. Knows tokenizer.json; knows no model."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from serve_apps.chat.events import TokenText

_MAX_CACHED = 65536


class TokenizerTexts:
    """Reads tokens of a byte-level tokenizer; an id outside the vocabulary is the empty text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {
            token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self.token = lru_cache(_MAX_CACHED)(self._token)

    @classmethod
    def from_folder(cls, folder: Path) -> TokenizerTexts:
        """From the folder's tokenizer.json."""
        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def _token(self, token_id: int) -> TokenText:
        if token_id in self._added:
            data = self._added[token_id].encode()
        else:
            data = _token_bytes(self._tokenizer.id_to_token(token_id) or "")
        return TokenText(text=data.decode("utf-8", "replace"), data=data)


def _token_bytes(token: str) -> bytes:
    """The bytes a byte-level token stands for; a token that is not byte-level stands for its own UTF-8."""
    table = _byte_table()
    if all(char in table for char in token):
        return bytes(table[char] for char in token)
    return token.encode()


@lru_cache(1)
def _byte_table() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte (Radford et al. 2019, GPT-2)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in plain}
    rest = [byte for byte in range(256) if byte not in set(plain)]
    table.update({chr(0x100 + i): byte for i, byte in enumerate(rest)})
    return table
