"""What the pipeline asks of an encoder. Knows no architecture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from mm_pipeline.image import ImageInput


class TensorSource(Protocol):
    """Named weights, one tensor at a time: a safetensors file, or a folder of them."""

    def keys(self) -> Iterable[str]: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


class SoundStream(Protocol):
    """One sound whose segments come over time."""

    def add(self, mel: torch.Tensor) -> None:
        """The next segment, float32 [frames, mels]. Raises ValueError for one that does not fit the model."""

    def finish(self) -> torch.Tensor:
        """[num_tokens, hidden_size]. Raises ValueError without segments."""


class SoundEncoder(Protocol):
    """Mel segments to embeddings."""

    @property
    def identity(self) -> str:
        """See `Encoder.identity`."""

    @property
    def hidden_size(self) -> int:
        """Width of an embedding."""

    def stream(self) -> SoundStream:
        """For one sound."""


class Encoder(Protocol):
    """Preprocessed items to embeddings. Thread-safe."""

    @property
    def identity(self) -> str:
        """Architecture, dtype and a digest of the weights: equal identities give equal embeddings."""

    @property
    def hidden_size(self) -> int:
        """Width of an embedding."""

    def encode(self, items: Sequence[ImageInput]) -> list[torch.Tensor]:
        """One [num_tokens, hidden_size] tensor per item; an item's result does not depend on its neighbours."""
