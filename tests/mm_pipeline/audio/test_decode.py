"""Chunks on threads give what one decoder gives, damage costs its samples, parts are parts of the whole."""

import io
import os
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path

import av
import numpy as np
import pytest
import torch
import torchaudio

from mm_pipeline.audio import AudioSettings, NoSoundError, decode_audio, log_mel, mel_segments, probe_audio
from mm_pipeline.audio import packets as packets_module
from mm_pipeline.errors import InvalidMediaError, MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from tests.mm_pipeline.audio.sounds import chirp, decode, encode, plain_decode, remux

# Codec, container, options, and how far chunks may be from one decoder through all: 0 where the codec is exact.
# AAC without noise substitution, whose noise is another one in every decoder.
CODECS = {
    "wav": ("pcm_s16le", "wav", {}, 0.0),
    "wav24": ("pcm_s24le", "wav", {}, 0.0),
    "flac": ("flac", "flac", {}, 0.0),
    "alac": ("alac", "mp4", {}, 0.0),
    "aac": ("aac", "mp4", {"aac_pns": "0"}, 0.0),
    "adts": ("aac", "adts", {"aac_pns": "0"}, 0.0),
    "mp3": ("libmp3lame", "mp3", {}, 0.0),
    "opus": ("libopus", "ogg", {}, 1e-4),
    "webm": ("libopus", "webm", {}, 1e-4),
    "ac3": ("ac3", "matroska", {}, 0.0),
}


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks of half a second, so that short files have several."""
    monkeypatch.setattr(packets_module, "_CHUNK_S", 0.5)


def encoded(name, seconds=4.0, rate=48_000, channels=2):
    codec, container, options, _ = CODECS[name]
    return encode(chirp(seconds, rate, channels), rate, codec=codec, container=container, **options)


@pytest.mark.parametrize("name", CODECS)
def test_chunks_are_what_one_decoder_gives(name, short_chunks):
    data = encoded(name)
    oracle = plain_decode(data).mean(axis=0)
    one, report = decode(data, 48_000, num_threads=1)
    many, _ = decode(data, 48_000, num_threads=3)
    assert np.array_equal(one, many)
    assert report.notes == ()
    assert abs(len(one) - len(oracle)) <= (1024 if name in ("alac", "aac") else 0)
    assert np.abs(one - oracle[: len(one)]).max() <= CODECS[name][3] + 1e-7


def test_noise_substitution_does_not_depend_on_the_threads(short_chunks):
    data = encode(chirp(4.0, 44_100), 44_100, codec="aac", container="mp4", bit_rate=48_000)
    assert np.array_equal(decode(data, num_threads=1)[0], decode(data, num_threads=3)[0])


@pytest.mark.parametrize("rate", [22_050, 44_100, 48_000])
def test_resampled_as_torchaudio_does(rate):
    samples = chirp(3.0, rate, 2)
    data = encode(samples, rate, codec="pcm_f32le")
    oracle = torchaudio.functional.resample(torch.from_numpy(samples).double().mean(0), rate, 24_000)
    made, _ = decode(data)
    np.testing.assert_allclose(made, oracle.float().numpy(), atol=2e-6, rtol=0)


def test_bytes_and_files_are_alike(tmp_path):
    data = encoded("flac", seconds=1.0)
    path = tmp_path / "sound.flac"
    path.write_bytes(data)
    assert np.array_equal(decode(data)[0], decode(Path(path))[0])


@pytest.mark.parametrize("codec", ["pcm_u8", "pcm_s16le", "pcm_s32le", "pcm_f64le"])
def test_sample_formats(codec):
    samples = chirp(0.5, 24_000)
    made, _ = decode(encode(samples, 24_000, codec=codec))
    assert np.abs(made - samples[0]).max() <= (1 / 128 if codec == "pcm_u8" else 1e-4)


@pytest.mark.parametrize(
    "layout", ["mono", "stereo", "2.1", "3.0", "4.0", "quad", "5.0", "5.1", "5.1(side)", "6.1", "7.1"]
)
def test_downmix_is_ffmpegs_normalised_one(layout):
    count = av.AudioLayout(layout).nb_channels
    data = encode(chirp(0.5, 48_000, count), 48_000, codec="flac", container="flac", layout=layout)
    graph = av.filter.Graph()
    with av.open(io.BytesIO(data)) as container:
        source = graph.add_abuffer(template=container.streams.audio[0])
        mixer = graph.add("aresample", "48000:rematrix_maxval=1.0:osf=flt:ochl=mono")
        sink = graph.add("abuffersink")
        source.link_to(mixer)
        mixer.link_to(sink)
        graph.configure()
        for frame in container.decode(audio=0):
            graph.push(frame)
    graph.push(None)
    mixed = []
    while True:
        try:
            mixed.append(graph.pull().to_ndarray()[0])
        except (av.error.EOFError, av.error.BlockingIOError):
            break
    made, _ = decode(data, 48_000)
    np.testing.assert_allclose(made, np.concatenate(mixed), atol=1e-5)


def test_eight_planes():
    samples = np.zeros((8, 24_000), np.float32)
    samples[2] = chirp(0.5, 48_000)[0]
    data = encode(samples, 48_000, codec="aac", container="mp4", layout="7.1", bit_rate=512_000)
    made, _ = decode(data, 48_000)
    mixed = samples[2] / (1 + 2 * 0.5**0.5 + 4 * 0.5)
    assert np.abs(made[:20_000] - mixed[:20_000]).max() < 0.02


def test_no_numbers_become_silence():
    samples = chirp(0.5, 24_000)
    samples[0, 1000:1010] = np.nan
    samples[0, 2000] = np.inf
    samples[0, 3000] = 1e30
    made, _ = decode(encode(samples, 24_000, codec="pcm_f32le"))
    assert (made[1000:1010] == 0).all()
    assert made[2000] == 0
    assert made[3000] == 64
    assert made[4000] == pytest.approx(samples[0, 4000])


@pytest.mark.parametrize("name", ["wav", "flac", "aac", "mp3", "opus", "ac3"])
@pytest.mark.parametrize(("start_s", "end_s"), [(0.0, 1.0), (0.7, 0.75), (2.6, None), (3.0, 99.0)])
def test_a_part_is_a_part_of_the_whole(name, start_s, end_s, short_chunks):
    data = encoded(name, rate=44_100 if name != "opus" else 48_000)
    whole, _ = decode(data)
    part, report = decode(data, start_s=start_s, end_s=end_s)
    end = len(whole) if end_s is None else min(len(whole), round(end_s * 24_000))
    # The last bits depend on where the resampler's rows begin.
    np.testing.assert_allclose(part, whole[round(start_s * 24_000) : end], atol=1e-6, rtol=0)
    assert report.filled_s == 0


def test_a_part_does_not_decode_what_lies_before(short_chunks, monkeypatch):
    from mm_pipeline.audio import decode as decode_module

    decoded = []

    class Counting(decode_module.ChunkDecoder):
        def __call__(self, chunk):
            decoded.append(chunk)
            return super().__call__(chunk)

    monkeypatch.setattr(decode_module, "ChunkDecoder", Counting)
    decode(encoded("wav", seconds=20.0), start_s=18.0, end_s=19.0)
    assert len(decoded) < 12


def test_a_start_behind_the_end_is_the_callers_mistake():
    with pytest.raises(InvalidMediaError, match=r"start_s is 9, but the sound is 1\.000 s long"):
        decode(encoded("wav", seconds=1.0), start_s=9.0)


def test_a_damaged_packet_costs_its_samples():
    """FLAC checks its frames: one with flipped bits does not decode. All the others keep their places."""
    samples = chirp(4.0, 48_000)
    clean = encode(samples, 48_000, codec="flac", container="flac")

    def flip(index, packet):
        payload = bytes(packet)
        if index in (10, 11, 20):
            payload = payload[:40] + bytes(byte ^ 0x5A for byte in payload[40:90]) + payload[90:]
        return payload, packet.pts

    made, report = decode(remux(clean, "matroska", flip), 48_000)
    wanted = samples[0]
    assert len(made) == len(wanted)
    assert report.damaged_packets == 3
    assert "3 damaged audio packets" in report.notes[0]
    differs = np.abs(made - wanted) > 1e-3
    frame = 4608
    allowed = np.zeros_like(differs)
    allowed[10 * frame : 12 * frame] = True
    allowed[20 * frame : 21 * frame] = True
    assert differs.any()
    assert not (differs & ~allowed).any()


def test_missing_packets_leave_silence():
    clean = encode(chirp(3.0, 48_000), 48_000, codec="flac", container="flac")
    lacking = remux(clean, "matroska", lambda i, p: None if 5 <= i < 12 else (bytes(p), p.pts))
    made, report = decode(lacking, 48_000)
    wanted = chirp(3.0, 48_000)[0]
    assert len(made) == len(wanted)
    begin, end = 5 * 4608, 12 * 4608
    # Matroska keeps milliseconds.
    assert not made[begin + 48 : end - 48].any()
    assert np.abs(made[:begin] - wanted[:begin]).max() < 1e-4
    assert report.filled_s == pytest.approx((end - begin) / 48_000, abs=0.001)


def test_one_wrong_timestamp_moves_nothing():
    clean = encode(chirp(3.0, 48_000), 48_000, codec="flac", container="flac")
    wrong = remux(clean, "matroska", lambda i, p: (bytes(p), p.pts - 3000 if i == 10 else p.pts))
    made, report = decode(wrong, 48_000)
    np.testing.assert_array_equal(made, decode(clean, 48_000)[0])
    assert report.filled_s == report.dropped_s == 0


@pytest.mark.parametrize("name", ["wav", "flac", "aac", "mp3", "opus", "webm", "ac3"])
def test_cut_anywhere_it_is_a_beginning_or_an_error(name):
    data = encoded(name, seconds=1.0)
    whole, _ = decode(data)
    for tenth in range(1, 10):
        try:
            made, _ = decode(data[: len(data) * tenth // 10])
        except UnsupportedMediaError:
            continue
        assert 0 < len(made) <= len(whole) + 1200
        safe = max(0, len(made) - 3000)
        assert np.allclose(made[:safe], whole[:safe], atol=1e-3)


def test_another_rate_in_the_middle_loses_nothing():
    parts = [
        encode(chirp(2.0, rate), rate, codec="libmp3lame", container="mp3", write_xing="0", id3v2_version="0")
        for rate in (44_100, 22_050)
    ]
    first, second = (decode(part)[0] for part in parts)
    both, _ = decode(b"".join(parts))
    # Nothing tells the second file's delay here, so that its header frame and its delay are heard as silence.
    surplus = (1152 + 1105) / 22_050 * 24_000
    assert len(both) == pytest.approx(len(first) + len(second) + surplus, abs=2)
    assert np.abs(both[:47_000] - first[:47_000]).max() < 1e-3
    needle = second[12_000:36_000]
    haystack = both[len(first) + 11_000 : len(first) + 39_000]
    assert np.correlate(haystack, needle).max() > 0.98 * float(needle @ needle)


def test_empty_and_absent_sound():
    with pytest.raises(UnsupportedMediaError, match="0 bytes"):
        decode(b"")
    with pytest.raises(UnsupportedMediaError):
        probe_audio(b"nothing of the kind" * 100)
    header = encoded("wav", seconds=1.0)
    no_packets = header[: header.index(b"data") + 4] + bytes(4)
    with pytest.raises(NoSoundError, match="without any sound"):
        decode(no_packets)


def test_probe():
    info = probe_audio(encode(chirp(1.5, 44_100, 2), 44_100, codec="flac", container="flac"))
    assert (info.codec, info.sample_rate, info.channels) == ("flac", 44_100, 2)
    assert info.duration_s == pytest.approx(1.5)
    assert info.start_s == info.origin_s == 0
    assert info.video_start_s is None


def test_origin_moves_time_zero():
    data = encoded("wav", seconds=2.0)
    whole, _ = decode(data)
    late, report = decode(data, origin_s=-0.5)
    assert not late[:11_900].any()
    np.testing.assert_allclose(late[12_050:], whole[50:], atol=1e-5, rtol=0)
    assert report.notes == ()
    early, _ = decode(data, origin_s=0.5)
    np.testing.assert_allclose(early[50:], whole[12_050:], atol=1e-5, rtol=0)


def test_segments_are_the_mel_of_the_whole(short_chunks):
    settings = AudioSettings(segment_frames=130)
    data = encoded("aac", seconds=5.0, rate=44_100)
    with mel_segments(data, settings, MediaLimits(), num_threads=2) as stream:
        segments = list(stream)
    assert [len(segment) for segment in segments[:-1]] == [130] * (len(segments) - 1)
    assert np.array_equal(np.concatenate(segments), log_mel(decode(data)[0], settings))


def test_a_sound_over_the_limit_is_refused():
    limits = MediaLimits(max_media_duration_s=1.0)
    data = encoded("wav", seconds=2.0)
    with pytest.raises(MediaTooLargeError, match="longer than 1 s"):
        list(mel_segments(data, AudioSettings(), limits))
    assert len(list(mel_segments(data, AudioSettings(), limits, start_s=0.5, end_s=1.5))) == 1
    # ADTS does not tell its length; decoding finds it.
    with pytest.raises(MediaTooLargeError):
        list(mel_segments(encoded("adts", seconds=4.0), AudioSettings(), limits))


def test_cancel_and_close_end_all_threads(short_chunks):
    data = encoded("aac", seconds=20.0)
    num_threads, num_files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    cancel = threading.Event()
    stream = decode_audio(data, sample_rate=24_000, num_threads=2, cancel=cancel)
    next(stream)
    cancel.set()
    with pytest.raises(CancelledError):
        for _ in stream:
            pass
    abandoned = mel_segments(data, AudioSettings(segment_frames=10), MediaLimits(), num_threads=2)
    next(abandoned)
    abandoned.close()
    abandoned.close()
    deadline = time.monotonic() + 5
    while threading.active_count() > num_threads and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == num_threads
    assert len(os.listdir("/proc/self/fd")) == num_files


def test_a_stream_that_turns_up_late_changes_nothing():
    """A second program in a transport stream, which the container did not have when it was opened."""

    class Late:
        def demux(self, track):
            yield from packets
            raise IndexError("list index out of range")

    with av.open(io.BytesIO(encoded("flac", seconds=1.0))) as container:
        track = container.streams.audio[0]
        packets = [packet for packet in container.demux(track) if packet.size]
        reader = packets_module.PacketReader(Late(), track, 0)
        assert [packet for chunk in reader for packet in chunk.packets] == packets
    assert reader.num_errors == 0
