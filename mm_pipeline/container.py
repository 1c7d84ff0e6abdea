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

# Playlists and scripts name other files, and FFmpeg would open them; text files would come out as ANSI art. Only
# formats that hold their own media are opened, and nothing but the file itself.
_FORMATS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,asf,mpegts,mpeg,mpegvideo,h264,hevc,av1,obu,ivf,m4v,mjpeg,"
    "ogg,wav,w64,mp3,aac,flac,aiff,caf,au,amr,ac3,eac3,dts,ape,tta,wv,mxf,nut,rm,dv,voc,"
    "gif,apng,webp_pipe,png_pipe,jpeg_pipe"
)
_OPTIONS = {"format_whitelist": _FORMATS, "protocol_whitelist": "file"}


@contextmanager
def open_container(source: MediaSource) -> Iterator[InputContainer]:
    """A container over the bytes or the file, closed at the end of the block.

    Raises UnsupportedMediaError when no demuxer knows the bytes, for an empty source and for one without
    streams. No other file is opened, whatever the bytes name. Errors of the block pass through.
    """
    if source == b"":
        raise UnsupportedMediaError("the media item is empty (0 bytes); send the whole file")
    # bytes are not copied by BytesIO as long as nobody writes to it.
    file = io.BytesIO(source) if isinstance(source, bytes) else str(source)
    try:
        container = av.open(
            file, mode="r", options=_OPTIONS, buffer_size=_BUFFER_BYTES, metadata_errors="replace"
        )
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
