"""A file's sound as the log-mel segments an audio encoder takes. Knows decoding and mel; no encoder."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator

import numpy as np

from mm_pipeline.audio.decode import AudioReport, AudioStream, decode_audio
from mm_pipeline.audio.mel import LogMelStream
from mm_pipeline.audio.settings import AudioSettings
from mm_pipeline.container import MediaSource
from mm_pipeline.limits import MediaLimits


class MelSegments(Iterator[np.ndarray]):
    """Iterates over float32 [segment_frames, n_mels], the last one shorter. `report` is complete after it.

    Joined they are exactly `log_mel` of the whole waveform. Close it, or use it in a with statement, when it is
    not read to its end.
    """

    def __init__(self, audio: AudioStream, settings: AudioSettings) -> None:
        self._audio = audio
        self._settings = settings
        self._segments = self._run()

    def __next__(self) -> np.ndarray:
        return next(self._segments)

    def __enter__(self) -> MelSegments:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the decoding and closes the file. Calling it again does nothing."""
        self._segments.close()
        self._audio.close()

    @property
    def report(self) -> AudioReport:
        return self._audio.report

    def _run(self) -> Generator[np.ndarray, None, None]:
        with self._audio:
            mel = LogMelStream(self._settings)
            frames: list[np.ndarray] = []
            for samples in self._audio:
                frames += mel.push(samples)
                yield from self._cut(frames)
            frames += mel.finish()
            yield from self._cut(frames)
            if frames:
                yield np.concatenate(frames)

    def _cut(self, frames: list[np.ndarray]) -> Iterator[np.ndarray]:
        """Takes whole segments out of `frames`."""
        size = self._settings.segment_frames
        while sum(block.shape[0] for block in frames) >= size:
            joined = np.concatenate(frames)
            frames[:] = [joined[size:]] if joined.shape[0] > size else []
            yield joined[:size].copy()


def mel_segments(
    source: MediaSource,
    settings: AudioSettings,
    limits: MediaLimits,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    origin_s: float | None = None,
    num_threads: int | None = None,
    cancel: threading.Event | None = None,
) -> MelSegments:
    """Log-mel segments of a file's sound; the arguments and errors of `decode_audio`.

    Raises MediaTooLargeError, while iterating, for more than `limits.max_media_duration_s` of wanted sound.
    """
    audio = decode_audio(
        source,
        sample_rate=settings.sample_rate,
        start_s=start_s,
        end_s=end_s,
        max_duration_s=limits.max_media_duration_s,
        origin_s=origin_s,
        num_threads=num_threads,
        cancel=cancel,
    )
    return MelSegments(audio, settings)
