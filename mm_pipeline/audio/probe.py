"""What sound is in a file. Reads headers; decodes nothing but what opening a file needs."""

from __future__ import annotations

from dataclasses import dataclass

from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Disposition, Stream

from mm_pipeline.container import MediaSource, open_container
from mm_pipeline.errors import UnsupportedMediaError

# One second of PyAV's container times.
_CONTAINER_TICKS = 1_000_000


class NoSoundError(UnsupportedMediaError):
    """The file is readable and has no sound: no track for it, or a track without samples."""


@dataclass(frozen=True, kw_only=True)
class AudioInfo:
    """codec: FFmpeg's name of the decoder. sample_rate: Hz. channels: count. duration_s: as the container tells,
    None if it does not. start_s: the track's first timestamp. video_start_s: that of the moving pictures beside
    it, None
    without any. container: FFmpeg's name of the format.
    """

    codec: str
    sample_rate: int
    channels: int
    duration_s: float | None
    start_s: float
    video_start_s: float | None
    container: str

    @property
    def origin_s(self) -> float:
        """The file's time at which its sound is said to begin: where its pictures begin, else its own start."""
        return self.start_s if self.video_start_s is None else self.video_start_s


def probe_audio(source: MediaSource) -> AudioInfo:
    """Of the track `decode_audio` would decode. Raises NoSoundError where there is none, UnsupportedMediaError for
    bytes that are no media file.
    """
    with open_container(source) as container:
        return describe(container, find_track(container))


def find_track(container: InputContainer) -> AudioStream:
    """The audio stream to decode: the first marked as default that has a decoder, else the first with one."""
    tracks = [stream for stream in container.streams.audio if _is_decodable(stream)]
    if not tracks:
        if len(container.streams.audio):
            raise UnsupportedMediaError(
                "the file's sound is in a codec that cannot be decoded here; convert it to AAC, MP3, Opus, "
                "FLAC or WAV"
            )
        raise NoSoundError("the file has no sound in it; send a file with an audio track")
    for track in tracks:
        if track.disposition & Disposition.default:
            return track
    return tracks[0]


def describe(container: InputContainer, track: AudioStream) -> AudioInfo:
    """AudioInfo of one stream of an open container."""
    context = track.codec_context
    pictures = [
        stream
        for stream in container.streams.video
        if not stream.disposition & (Disposition.attached_pic | Disposition.timed_thumbnails)
    ]
    start_s = _seconds(track.start_time, track)
    video_start_s = None
    if pictures and pictures[0].start_time is not None:
        video_start_s = _seconds(pictures[0].start_time, pictures[0])
    if track.duration is not None and track.duration > 0:
        duration_s: float | None = _seconds(track.duration, track)
    elif container.duration is not None and container.duration > 0:
        duration_s = container.duration / _CONTAINER_TICKS
    else:
        duration_s = None
    return AudioInfo(
        codec=context.codec.name,
        sample_rate=context.sample_rate,
        channels=len(context.layout.channels),
        duration_s=duration_s,
        start_s=start_s,
        video_start_s=video_start_s,
        container=container.format.name,
    )


def _is_decodable(stream: AudioStream) -> bool:
    return stream.codec_context is not None and stream.codec_context.codec is not None


def _seconds(ticks: int | None, stream: Stream) -> float:
    return 0.0 if ticks is None or stream.time_base is None else float(ticks * stream.time_base)
