"""Cache keys for encoded media: equal keys mean equal embeddings.

Knows how to frame and digest the parts. Does not know which settings a modality has; callers pass only
the settings that change that modality's pixels or samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from blake3 import blake3

SettingValue: TypeAlias = "str | int | float | bool | Sequence[SettingValue] | None"


def content_key(
    modality: str, encoder_identity: str, settings: Mapping[str, SettingValue], data: bytes
) -> str:
    """Full-width blake3 digest (64 hex digits) over length-framed parts.

    encoder_identity names architecture, weights and dtype. The order of `settings` does not matter.
    Raises TypeError for a setting value of another type.
    """
    hasher = blake3()
    parts = [modality.encode(), encoder_identity.encode()]
    for name in sorted(settings):
        parts += [name.encode(), _canonical(settings[name])]
    for part in (*parts, data):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()


def _canonical(value: SettingValue) -> bytes:
    """Bytes that differ whenever type or value differ: 1, 1.0, True and "1" are four settings."""
    if value is None:
        return b"n"
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    if isinstance(value, int):
        return b"i%d" % value
    if isinstance(value, float):
        return b"f" + value.hex().encode()
    if isinstance(value, str):
        return b"s" + value.encode()
    if isinstance(value, Sequence):
        items = [_canonical(item) for item in value]
        return b"l" + b"".join(len(item).to_bytes(8, "little") + item for item in items)
    raise TypeError(
        f"setting value {value!r} is a {type(value).__name__}; use str, int, float, bool, None or a list"
    )
