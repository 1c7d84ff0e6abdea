"""One entry as a safetensors file: one tensor called "embeddings", everything else in the header's metadata.

Knows bytes and checksums. Does not know folders or bounds.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from io import BufferedReader
from typing import Any, Final

import torch
from blake3 import blake3
from safetensors.torch import save

from mm_pipeline.prompt.layout import VideoLayout
from mm_pipeline.store.base import Entry

_TENSOR: Final = "embeddings"
_DTYPES: Final = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_MAX_HEADER_BYTES: Final = 64 * 2**20


class DamagedEntryError(Exception):
    """The file is not what was written."""


def to_bytes(entry: Entry, embeddings: torch.Tensor) -> bytes:
    """A whole file. Embeddings: float32, bfloat16 or float16; ValueError for another dtype."""
    if embeddings.dtype not in _DTYPES.values():
        raise ValueError(
            f"dtype is {embeddings.dtype}; one of {list(_DTYPES.values())} can be stored on disk"
        )
    plain = embeddings.detach().cpu().contiguous()
    described = json.dumps(asdict(entry))
    metadata = {"entry": described, "blake3": _checksum(described, memoryview(_raw(plain)))}
    return save({_TENSOR: plain}, metadata)


def read(file: BufferedReader, num_bytes: int) -> tuple[Entry, torch.Tensor]:
    """The entry and its embeddings, on the CPU. num_bytes: size of the file. Raises DamagedEntryError, OSError."""
    content = bytearray(num_bytes)
    if file.readinto(content) != num_bytes:
        raise DamagedEntryError("the file is shorter than it was")
    try:
        header_bytes = int.from_bytes(content[:8], "little")
        if not 0 < header_bytes <= min(_MAX_HEADER_BYTES, num_bytes - 8):
            raise DamagedEntryError(f"the header claims {header_bytes} bytes")
        begin = 8 + header_bytes
        header: dict[str, Any] = json.loads(content[8:begin])
        described = header["__metadata__"]["entry"]
        if header["__metadata__"]["blake3"] != _checksum(described, memoryview(content)[begin:]):
            raise DamagedEntryError("the checksum does not match")
        entry = _entry(json.loads(described))
        dtype = _DTYPES[header[_TENSOR]["dtype"]]
        if str(dtype) != entry.dtype or num_bytes - begin != entry.num_bytes:
            raise DamagedEntryError("header and content disagree")
        # Over the same memory: nothing is copied after the read.
        flat = torch.frombuffer(content, dtype=dtype, offset=begin) if entry.num_bytes else torch.empty(0)
        return entry, flat.to(dtype).view(entry.num_tokens, entry.hidden_size)
    except (KeyError, TypeError, ValueError, RuntimeError, RecursionError) as error:
        raise DamagedEntryError(f"the header does not parse: {type(error).__name__}") from error


def _entry(described: dict[str, Any]) -> Entry:
    layout = described["layout"]
    if layout is not None:
        layout = VideoLayout(**layout | {"frame_times_s": tuple(layout["frame_times_s"])})
    return Entry(**described | {"layout": layout, "notes": tuple(described["notes"])})


def _raw(plain: torch.Tensor) -> Any:
    return plain.view(torch.uint8).numpy().reshape(-1)


def _checksum(described: str, data: memoryview) -> str:
    framed = described.encode()
    hasher = blake3(len(framed).to_bytes(8, "little") + framed)
    hasher.update(data)
    return hasher.hexdigest()
