"""What `bench audio` runs in processes of their own: a file to log-mel frames, once, each in its own way.

Every function returns (number of frames, mean of the log-mel values). A contestant's libraries are imported before
its time starts, and no others, since memory counts too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from mm_pipeline.audio import AudioSettings, mel_segments
from mm_pipeline.limits import MediaLimits
from serve_apps.bench.process import peak_rss_mb

OURS = "ours"
_TORCHAUDIO, _TORCHCODEC = "torchaudio.transforms", "torchcodec.decoders"
_RATE = 24_000
_LOOP_S = 60
_SOUND_RATE = 44_100
_AAC_FRAME = 1024


def ours(path: Path) -> tuple[int, float]:
    frames, total = 0, 0.0
    limits = MediaLimits(max_media_duration_s=1e9)
    for segment in mel_segments(path, AudioSettings(), limits):
        frames += segment.shape[0]
        total += float(segment.sum())
    return frames, total / (frames * 128)


def torchcodec_torchaudio(path: Path) -> tuple[int, float]:
    """Load all, mix, resample, transform: as the documentation of both libraries shows it."""
    samples = _load(_TORCHCODEC).AudioDecoder(str(path)).get_all_samples()
    mono = samples.data.mean(dim=0)
    return _transform(_load(_TORCHAUDIO).Resample(samples.sample_rate, _RATE)(mono))


def torchcodec_resampling(path: Path) -> tuple[int, float]:
    """The decoder mixes and resamples too."""
    decoder = _load(_TORCHCODEC).AudioDecoder(str(path), sample_rate=_RATE, num_channels=1)
    # Its mix of two channels is 1.41 times as loud as their mean.
    return _transform(decoder.get_all_samples().data[0] * 0.5**0.5)


def pyav_torchaudio(path: Path) -> tuple[int, float]:
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        blocks = [frame.to_ndarray() for frame in container.decode(stream)]
        mono = _load("torch").from_numpy(np.concatenate(blocks, axis=1)).mean(dim=0)
        return _transform(_load(_TORCHAUDIO).Resample(stream.sample_rate, _RATE)(mono))


def pyav_librosa(path: Path) -> tuple[int, float]:
    """librosa has no AAC decoder of its own."""
    librosa = _load("librosa")
    with av.open(str(path)) as container:
        stream = container.streams.audio[0]
        blocks = [frame.to_ndarray() for frame in container.decode(stream)]
        mono = librosa.to_mono(np.concatenate(blocks, axis=1))
        waveform = librosa.resample(mono, orig_sr=stream.sample_rate, target_sr=_RATE)
    mel = librosa.feature.melspectrogram(
        y=waveform, sr=_RATE, n_fft=960, hop_length=240, n_mels=128, power=1.0, htk=True, norm=None
    )
    logs = np.log(np.maximum(mel, 1e-7))
    return logs.shape[1], float(logs.mean())


TUNED = "torchcodec resampling + torchaudio"
"""What few people write; the others are the straightforward ways."""

PEERS: dict[str, Callable[[Path], tuple[int, float]]] = {
    "torchcodec + torchaudio": torchcodec_torchaudio,
    TUNED: torchcodec_resampling,
    "PyAV + torchaudio": pyav_torchaudio,
    "PyAV + librosa": pyav_librosa,
}
_LIBRARIES: dict[str, tuple[str, ...]] = {
    "torchcodec + torchaudio": (_TORCHCODEC, _TORCHAUDIO),
    TUNED: (_TORCHCODEC, _TORCHAUDIO),
    "PyAV + torchaudio": (_TORCHAUDIO,),
    "PyAV + librosa": ("librosa",),
}


def make_sound(path: Path, minutes: int) -> None:
    """Stereo AAC at 44.1 kHz and 128 kbit/s: a minute of gliding tones over breathing noise, again and again."""
    t = np.arange(_LOOP_S * _SOUND_RATE) / _SOUND_RATE
    noise = np.random.default_rng(0).normal(0, 0.05, (2, len(t))) * (0.5 + 0.5 * np.sin(6 * np.pi * t))
    tones = np.stack([0.3 * np.sin(2 * np.pi * (hz + 20 * np.sin(t)) * t) for hz in (220, 250)])
    samples = (noise + tones).astype(np.float32)
    with av.open(str(path), "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=_SOUND_RATE, layout="stereo")
        stream.bit_rate = 128_000
        packets = []
        for begin in range(0, samples.shape[1], _AAC_FRAME):
            block = np.ascontiguousarray(samples[:, begin : begin + _AAC_FRAME])
            frame = av.AudioFrame.from_ndarray(block, format="fltp", layout="stereo")
            frame.sample_rate, frame.pts = _SOUND_RATE, begin
            frame.time_base = Fraction(1, _SOUND_RATE)
            packets += stream.encode(frame)
        payloads = [bytes(packet) for packet in [*packets, *stream.encode(None)] if packet.size]
        for number in range(minutes * 60 * _SOUND_RATE // _AAC_FRAME):
            copy = av.Packet(payloads[number % len(payloads)])
            copy.stream, copy.time_base = stream, Fraction(1, _SOUND_RATE)
            copy.pts = copy.dts = number * _AAC_FRAME
            copy.duration = _AAC_FRAME
            output.mux(copy)


def _load(library: str) -> Any:
    return importlib.import_module(library)


def _transform(waveform: Any) -> tuple[int, float]:
    mel = _load(_TORCHAUDIO).MelSpectrogram(_RATE, n_fft=960, hop_length=240, n_mels=128, power=1.0)
    logs = mel(waveform).clamp(min=1e-7).log()
    return logs.shape[1], float(logs.mean())


def main() -> None:
    """Runs one contestant and prints one JSON line: seconds, peak_rss_mb, import_rss_mb, frames, mean."""
    parser = argparse.ArgumentParser()
    parser.add_argument("contestant", choices=[OURS, *PEERS])
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    contestant = ours if args.contestant == OURS else PEERS[args.contestant]
    for library in _LIBRARIES.get(args.contestant, ()):
        _load(library)
    import_rss_mb = peak_rss_mb()
    started = time.perf_counter()
    frames, mean = contestant(args.path)
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - started,
                "peak_rss_mb": peak_rss_mb(),
                "import_rss_mb": import_rss_mb,
                "frames": frames,
                "mean": mean,
            }
        )
    )


if __name__ == "__main__":
    main()
