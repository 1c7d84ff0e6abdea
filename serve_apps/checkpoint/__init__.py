"""Random-weight checkpoints in the MiMo-V2.5 hub format, and `mmserve make-checkpoint`."""

from __future__ import annotations

from pathlib import Path

from serve_apps.checkpoint.command import add_arguments, run
from serve_apps.checkpoint.sizes import Size, checkpoint_config, text_config

__all__ = ["Size", "add_arguments", "checkpoint_config", "make_checkpoint", "run", "text_config"]


def make_checkpoint(folder: Path, size: Size, seed: int = 0) -> None:
    """See `serve_apps.checkpoint.make.make_checkpoint`, which imports torch when called."""
    from serve_apps.checkpoint import make

    make.make_checkpoint(folder, size, seed)
