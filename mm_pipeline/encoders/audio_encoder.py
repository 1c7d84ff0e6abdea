"""Mel segments to language-model embeddings, segment by segment in bounded memory. Knows no weights format."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from mm_pipeline.encoders.mimo_audio import MimoAudioEncoder, group_codes
from mm_pipeline.encoders.mimo_audio_tokenizer import MimoAudioTokenizer


@dataclass(frozen=True, kw_only=True)
class EncodedSegment:
    """codes: int64 [rows, channels]. embeddings: [ceil(rows / group size), hidden_size], of this segment alone."""

    codes: torch.Tensor
    embeddings: torch.Tensor


class SegmentedAudioEncoder:
    """Takes one segment at a time: its codes depend on nothing else, and only a sound's embeddings grow with it.

    Thread-safe. identity, hidden_size: see `Encoder`. max_segment_frames: longest segment, in mel frames.
    """

    def __init__(
        self,
        tokenizer: MimoAudioTokenizer,
        encoder: MimoAudioEncoder,
        *,
        identity: str,
        max_segment_frames: int,
        device: torch.device,
    ) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._device = device
        self.identity = identity
        self.hidden_size = encoder.config.out_hidden_size
        self.max_segment_frames = max_segment_frames

    def encode(self, items: Sequence[Iterable[torch.Tensor]]) -> list[torch.Tensor]:
        """One [num_tokens, hidden_size] tensor per item, on the encoder's device.

        items: each the float32 mel segments [frames, mels] of one sound in order, read one at a time. Raises
        ValueError for an item without segments, or for a segment that is empty, too long or too narrow.
        """
        encoded = []
        for segments in items:
            stream = self.stream()
            for mel in segments:
                stream.add(mel)
            encoded.append(stream.finish())
        return encoded

    def stream(self) -> EmbeddingStream:
        """For one sound whose segments come over time."""
        return EmbeddingStream(self)

    def codes(self, mel: torch.Tensor) -> torch.Tensor:
        """The codes of one segment [frames, mels]: int64 [rows, channels]."""
        self._check_length(mel)
        with torch.no_grad():
            codes: torch.Tensor = self._tokenizer(mel.to(self._device))
        return codes

    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes [rows, channels] to embeddings [ceil(rows / group size), hidden_size]."""
        with torch.no_grad():
            embeddings: torch.Tensor = self._encoder(group_codes(codes, self.group_size))
        return embeddings

    def encode_segments(self, mels: Sequence[torch.Tensor]) -> list[EncodedSegment]:
        """Segments of any sounds, each as if its sound began with it; their codes are those of `codes`, and all go
        through `embed` together. Raises ValueError as `encode`, for the whole batch.
        """
        if not mels:
            return []
        for mel in mels:
            self._check_length(mel)
        with torch.no_grad():
            codes = self._tokenizer.many([mel.to(self._device) for mel in mels])
        groups = [group_codes(rows, self.group_size) for rows in codes]
        with torch.no_grad():
            packed: torch.Tensor = self._encoder(torch.cat(groups))
        parts = packed.split([len(group) for group in groups])
        # A view would keep the whole batch alive for as long as one sound is cached.
        return [
            EncodedSegment(codes=rows, embeddings=part.clone() if len(parts) > 1 else part)
            for rows, part in zip(codes, parts, strict=True)
        ]

    def join(self, segments: Sequence[EncodedSegment]) -> torch.Tensor:
        """The embeddings of the sound whose segments in order these are. Raises ValueError without segments.

        Where a segment before the last leaves a group open, that group goes on in the next one, and all is embedded
        again. None does with the segment length that models are trained with.
        """
        if not segments:
            raise ValueError("there is no sound to encode; add at least one segment")
        if all(len(segment.codes) % self.group_size == 0 for segment in segments[:-1]):
            parts = [segment.embeddings for segment in segments]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        return self.embed(torch.cat([segment.codes for segment in segments]))

    def _check_length(self, mel: torch.Tensor) -> None:
        if mel.shape[0] > self.max_segment_frames:
            raise ValueError(
                f"the mel segment has {mel.shape[0]} frames; at most {self.max_segment_frames} are allowed"
            )

    @property
    def group_size(self) -> int:
        """Code rows behind one embedding."""
        return self._encoder.config.group_size


class EmbeddingStream:
    """One sound on its way in. Holds its embeddings and less than one group of codes; not thread-safe."""

    def __init__(self, encoder: SegmentedAudioEncoder) -> None:
        self._encoder = encoder
        self._embeddings: list[torch.Tensor] = []
        self._rest: torch.Tensor | None = None

    def add(self, mel: torch.Tensor) -> None:
        """The next segment, float32 [frames, mels]. Raises ValueError as `SegmentedAudioEncoder.encode`."""
        codes = self._encoder.codes(mel)
        if self._rest is not None:
            codes = torch.cat([self._rest, codes])
        whole = codes.shape[0] - codes.shape[0] % self._encoder.group_size
        if whole:
            self._embeddings.append(self._encoder.embed(codes[:whole]))
        self._rest = codes[whole:]

    def finish(self) -> torch.Tensor:
        """[num_tokens, hidden_size]; the last row fills up the last group. Raises ValueError without segments."""
        if self._rest is not None and self._rest.shape[0]:
            self._embeddings.append(self._encoder.embed(self._rest))
        if not self._embeddings:
            raise ValueError("there is no sound to encode; add at least one segment")
        embeddings = torch.cat(self._embeddings)
        self._embeddings, self._rest = [], None
        return embeddings
