"""The next batch on its way to the device while the one before runs there. Knows no encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch


class Staging(Protocol):
    """Brings tensors to where an encoder runs."""

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same values on the device, ready to use there. tensors: equal but for their first dimension."""
        ...

    def finish(self) -> None:
        """Waits until the device has done what it was given by this thread."""
        ...


class CudaStaging:
    """Copies from page-locked memory on a stream of its own, beside the kernels of the batch that runs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """See `Staging.copy`."""
        lengths = [len(tensor) for tensor in tensors]
        together = torch.empty((sum(lengths), *tensors[0].shape[1:]), dtype=tensors[0].dtype, pin_memory=True)
        torch.cat(list(tensors), out=together)
        with torch.cuda.stream(self._stream):
            copied = together.to(self._device, non_blocking=True)
        # Only this thread waits. The memory is used on another stream than it came from, which is safe as long as
        # the batch is held until `finish`.
        self._stream.synchronize()
        return list(copied.split(lengths))

    def finish(self) -> None:
        """See `Staging.finish`."""
        torch.cuda.current_stream(self._device).synchronize()


def staging_for(device: str) -> Staging | None:
    """None where encoders read tensors from where they are."""
    found = torch.device(device)
    return CudaStaging(found) if found.type == "cuda" else None
