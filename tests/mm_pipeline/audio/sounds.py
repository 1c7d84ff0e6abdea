"""Small encoded sounds, and FFmpeg's own ways to decode, mix and resample them as oracles."""

import io
from fractions import Fraction

import av
import numpy as np

from mm_pipeline.audio import decode_audio


def chirp(seconds, rate, channels=1, *, seed=0):
    """float32 [channels, n]: every moment sounds different, every channel too."""
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).normal(0, 0.02, (channels, len(t)))
    tones = [
        0.4 * np.sin(2 * np.pi * (200 + 90 * c + 350 * t / max(seconds, 1)) * t) for c in range(channels)
    ]
    return (np.stack(tones) + noise).astype(np.float32)


def encode(samples, rate, *, codec="pcm_s16le", container="wav", layout=None, bit_rate=None, **options):
    """Bytes of a file with these samples, float32 [channels, n]."""
    layout = layout or ("mono" if len(samples) == 1 else "stereo")
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout, options=options)
        if bit_rate:
            stream.bit_rate = bit_rate
        resampler = av.AudioResampler(format=stream.format, layout=layout, rate=rate)
        for begin in range(0, samples.shape[1], 4096):
            # Interleaved: PyAV cannot make frames of eight planes.
            values = np.ascontiguousarray(samples[:, begin : begin + 4096].T).reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(values, format="flt", layout=layout)
            frame.sample_rate, frame.pts, frame.time_base = rate, begin, Fraction(1, rate)
            for converted in resampler.resample(frame):
                output.mux(stream.encode(converted))
        for converted in resampler.resample(None):
            output.mux(stream.encode(converted))
        output.mux(stream.encode(None))
    return buffer.getvalue()


def plain_decode(data):
    """float32 [channels, n]: one decoder through the whole file."""
    with av.open(io.BytesIO(data)) as container:
        resampler = av.AudioResampler(format="fltp")
        frames = [converted for frame in container.decode(audio=0) for converted in resampler.resample(frame)]
        return np.concatenate([frame.to_ndarray() for frame in frames], axis=1)


def decode(data, sample_rate=24_000, **options):
    """(waveform, report)."""
    with decode_audio(data, sample_rate=sample_rate, **options) as stream:
        blocks = list(stream)
        return np.concatenate(blocks), stream.report


def remux(data, container, change):
    """The packets of an audio file in another file; `change(index, packet)` gives the bytes and timestamp of each,
    or None to leave it out.
    """
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=container) as output:
        stream = output.add_stream_from_template(source.streams.audio[0])
        for index, packet in enumerate(source.demux(audio=0)):
            changed = change(index, packet) if packet.size else None
            if changed is None:
                continue
            payload, pts = changed
            copy = av.Packet(payload)
            copy.stream, copy.time_base = stream, packet.time_base
            copy.pts = copy.dts = pts
            copy.duration = packet.duration
            output.mux(copy)
    return buffer.getvalue()
