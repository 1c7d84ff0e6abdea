"""Opens video and audio files from memory or disk. Knows containers; decodes nothing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import av
import av.error
from av.container import InputContainer

from mm_pipeline.errors import UnsupportedMediaError

MediaSource: TypeAlias = "bytes | Path"

# With PyAV's default of 32 KiB, threads that read from memory spend their time waiting for the interpreter lock.
_BUFFER_BYTES = 1 << 20


@contextmanager
def open_container(source: MediaSource) -> Iterator[InputContainer]:
    """A container over the bytes or the file, closed at the end of the block.

    Raises UnsupportedMediaError when no demuxer knows the bytes, for an empty source and for one without
    streams. Errors of the block pass through.
    """
    if source == b"":
        raise UnsupportedMediaError("the media item is empty (0 bytes); send the whole file")
    # bytes are not copied by BytesIO as long as nobody writes to it.
    file = io.BytesIO(source) if isinstance(source, bytes) else str(source)
    try:
        container = av.open(file, mode="r", buffer_size=_BUFFER_BYTES, metadata_errors="replace")
    except (av.error.FFmpegError, ValueError, EOFError) as error:
        raise UnsupportedMediaError(
            "the bytes are no audio or video file that can be read; send a whole file in a common format "
            "such as MP4, MKV, WebM, WAV, MP3, FLAC or Ogg"
        ) from error
    try:
        if not len(container.streams):
            raise UnsupportedMediaError("the file has no streams in it; send a file with video or audio")
        yield container
    finally:
        container.close()
