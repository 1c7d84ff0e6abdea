"""Ids of the MiMo tokens that stand for media. Knows no tokenizer: the ids come from the checkpoint's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_CONFIG_KEYS = {
    "image_pad": "image_token_id",
    "video_pad": "video_token_id",
    "audio_pad": "audio_token_id",
    "vision_start": "vision_start_token_id",
    "vision_end": "vision_end_token_id",
    "video_start": "video_start_token_id",
    "video_end": "video_end_token_id",
    "audio_start": "audio_start_token_id",
    "audio_end": "audio_end_token_id",
}


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """A pad stands for one embedding; starts and ends surround a media item."""

    image_pad: int
    video_pad: int
    audio_pad: int
    vision_start: int
    vision_end: int
    video_start: int
    video_end: int
    audio_start: int
    audio_end: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SpecialTokens:
        """From `config.json`: its `processor_config`, then its top level. Raises ValueError for a missing id."""
        places = (config.get("processor_config", {}), config)
        ids: dict[str, int] = {}
        for name, key in _CONFIG_KEYS.items():
            found = next((place[key] for place in places if place.get(key) is not None), None)
            if found is None:
                raise ValueError(f"the checkpoint's config has no {key}; add it to processor_config")
            ids[name] = found
        return cls(**ids)

    def modality_of_pad(self, token_id: int) -> str | None:
        """ "image", "video" or "audio" for a pad token, None for any other."""
        return {self.image_pad: "image", self.video_pad: "video", self.audio_pad: "audio"}.get(token_id)

    @property
    def starts(self) -> frozenset[int]:
        """Tokens a template may write before a pad."""
        return frozenset((self.vision_start, self.video_start, self.audio_start))

    @property
    def ends(self) -> frozenset[int]:
        """Tokens a template may write after a pad."""
        return frozenset((self.vision_end, self.video_end, self.audio_end))
