"""Tensors of a hub-format folder: one safetensors file, several, or shards with an index.

The method names are those of `safetensors.safe_open`, so that either can be handed to a reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from llm_core.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class CheckpointFolder:
    """Lazily reads tensors by name. Files stay mapped while the object lives.

    Raises:
        CheckpointError: no safetensors file, a shard that the index names and the folder lacks, a damaged file,
            or a tensor that two files hold.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        index = folder / INDEX_NAME
        if index.is_file():
            self._file_of = dict(json.loads(index.read_text())["weight_map"])
            missing = sorted({name for name in self._file_of.values() if not (folder / name).is_file()})
            if missing:
                raise CheckpointError(f"{INDEX_NAME} names files that are not there: {', '.join(missing)}")
            return
        for path in sorted(folder.glob("*.safetensors")):
            for name in list(self._open(path.name).keys()):
                if name in self._file_of:
                    raise CheckpointError(f"tensor {name} is in {self._file_of[name]} and in {path.name}")
                self._file_of[name] = path.name
        if not self._file_of:
            raise CheckpointError(f"{folder} holds no safetensors file; give the folder of a checkpoint")

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            try:
                self._files[file_name] = safe_open(str(self.folder / file_name), framework="pt")
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file_name} is not a readable safetensors file") from error
        return self._files[file_name]

    def _handle(self, name: str) -> Any:
        if name not in self._file_of:
            raise CheckpointError(f"the checkpoint has no tensor {name}")
        return self._open(self._file_of[name])

    def identity(self) -> str:
        """Names, sizes and times of change of config.json and the weight files."""
        files = sorted({*self._file_of.values(), "config.json"})
        status = [(name, (self.folder / name).stat()) for name in files]
        return " ".join(f"{name} {one.st_size} {one.st_mtime_ns}" for name, one in status)

    def keys(self) -> list[str]:
        return sorted(self._file_of)

    def get_tensor(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._handle(name).get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{self._file_of[name]} does not hold tensor {name}") from error
        return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle(name).get_slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        return _DTYPES[self._handle(name).get_slice(name).get_dtype()]
