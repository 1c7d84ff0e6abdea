"""Videos whose right reading is no plain list of frames: interlaced, HDR, transparent, confused clocks, limits."""

import io

import av
import numpy as np
import pytest

from mm_pipeline.errors import InvalidMediaError, MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.video import VideoSettings, plan_frames, probe_video
from tests.media_files import VIDEO_FILES, pixels, streams, timing
from tests.media_files.encode import Video, write
from tests.media_files.picture import PATCHES, is_upright, read_patches
from tests.nasty.support import painted, sample


@pytest.mark.parametrize("max_pixels", [1 << 20, 96 * 64])
def test_interlaced_fields_are_not_woven(max_pixels):
    """Frame i holds the pictures 2 i and 2 i + 1; one of them is shown, without combs, at whatever size."""
    data = pixels.interlaced()
    assert probe_video(data).interlaced
    sampled = sample(data, VideoSettings(fps=1000.0, min_pixels=1024, max_pixels=max_pixels))
    assert len(sampled.times_s) == 40
    assert [None if number is None else number // 2 for number in sampled.numbers] == list(range(40))
    assert np.abs(read_patches(sampled.frames[0]) - np.array(PATCHES)).max() <= 4


@pytest.mark.parametrize("transfer", ["pq", "hlg"])
def test_hdr(transfer):
    """Tone mapped to SDR: hues stay, grey is grey, black is black, nothing brighter turns darker."""
    sampled = sample(pixels.hdr(transfer))
    assert sampled.numbers == list(range(8))
    assert any("HDR" in note for note in sampled.report.notes)
    patches = read_patches(sampled.frames[1])
    assert is_upright(sampled.frames[1])
    assert np.ptp(patches[3]) <= 6
    # Frame 1: seven black blocks and a white one.
    height, width = sampled.frames[1].shape[:2]
    blocks = sampled.frames[1][height // 8 : height // 4]
    black, white = blocks[:, width // 16].mean(), blocks[:, -width // 16].mean()
    assert black <= 4
    assert white >= 235
    # The grey patch's code is some 1,000 cd/m2 in PQ, far above a white page.
    assert 150 < patches[3].mean() <= white


def test_alpha_is_composited_on_white():
    sampled = sample(pixels.alpha())
    assert len(sampled.times_s) == 10
    frame = sampled.frames[3].astype(float)
    width = frame.shape[1]
    opaque, clear = frame[:, : width * 2 // 5].mean((0, 1)), frame[:, width * 3 // 5 :].mean((0, 1))
    assert np.abs(opaque - (200, 40, 48)).max() <= 4
    assert np.abs(clear - 255).max() <= 2


def test_duplicate_timestamps():
    """Frames 10 to 13 share a time: any of them may show then, and the rest is untouched."""
    sampled = sample(timing.duplicate_timestamps())
    shown = {round(time * 20): number for time, number in zip(sampled.times_s, sampled.numbers, strict=True)}
    assert sampled.report.lost_frames == 0
    for at, number in shown.items():
        assert number in (range(10, 14) if 10 <= at < 14 else [at])
    assert sampled.times_s[-1] == pytest.approx(39 / 20, abs=0.002)


def test_backward_timestamps():
    """Frames 20 to 24 claim the times of 0 to 4: there either may show; everything else is where it says."""
    sampled = sample(timing.backward_timestamps())
    for time, number in zip(sampled.times_s, sampled.numbers, strict=True):
        at = round(time * 20)
        if 5 <= at < 20 or at >= 25:
            assert number == at
        else:
            assert number is not None
    assert sampled.times_s[-1] == pytest.approx(39 / 20, abs=0.002)


@pytest.mark.parametrize(
    ("build", "word"), [(streams.cover_art_only, "cover picture"), (streams.sound_only, "no video")]
)
def test_sound_is_no_video(build, word):
    with pytest.raises(UnsupportedMediaError, match=word):
        probe_video(build())


def test_limits():
    huge, long = VIDEO_FILES["huge_8k"]().data, VIDEO_FILES["slides"]().data
    with pytest.raises(MediaTooLargeError, match="max_video_pixels is 33000000"):
        probe_video(huge, MediaLimits(max_video_pixels=33_000_000))
    with pytest.raises(MediaTooLargeError, match="max_media_duration_s is 200"):
        probe_video(long, MediaLimits(max_media_duration_s=200))


def test_a_start_after_the_end():
    with pytest.raises(InvalidMediaError, match=r"start_s is 5"):
        plan_frames(probe_video(VIDEO_FILES["plain"]().data), VideoSettings(start_s=5.0))


def test_one_frame_fills_a_unit():
    """The only frame is shown twice, as the processor pads."""
    sampled = sample(VIDEO_FILES["one_frame"]().data, VideoSettings())
    assert sampled.times_s == (0.0, 0.0)
    assert sampled.numbers == [77, 77]


def test_frames_are_those_of_a_plain_decode():
    """Pixels before scaling: the size is native, so the scaler only converts. Skipping must not change a pixel."""
    for name in ("plain", "open_gop_hevc", "webm_vp9", "intra_refresh"):
        data = VIDEO_FILES[name]().data
        every = sample(data, VideoSettings(fps=1000.0)).frames
        few = sample(data, VideoSettings(min_frames=6, max_frames=6))
        with av.open(io.BytesIO(data)) as container:
            total = sum(1 for _ in container.decode(video=0))
        for frame, time in zip(few.frames, few.times_s, strict=True):
            number = painted(frame)
            assert number is not None
            assert number < total
            assert time == pytest.approx(number / 30, abs=0.002)
            assert np.array_equal(frame, every[number])


@pytest.mark.parametrize("from_path", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n{other}\n#EXT-X-ENDLIST\n"),
        ("list.ffconcat", "ffconcat version 1.0\nfile {other}\n"),
        ("notes.txt", "plain words, no picture\n"),
    ],
)
def test_a_playlist_opens_nothing(tmp_path, name, text, from_path):
    """A file that only names others is no media: the others must not be read."""
    other = tmp_path / "other.ts"
    other.write_bytes(VIDEO_FILES["transport_stream"]().data)
    path = tmp_path / name
    path.write_text(text.format(other=other))
    with pytest.raises(UnsupportedMediaError):
        probe_video(path if from_path else path.read_bytes())


def test_a_codec_nobody_knows():
    """The track is there and cannot be decoded; another one that can is taken instead."""
    plain = VIDEO_FILES["plain"]().data
    with pytest.raises(UnsupportedMediaError, match="cannot be decoded"):
        probe_video(plain.replace(b"avc1", b"zzzz"))
    two = write("mp4", Video(frames=timing.steady(10)), Video(frames=timing.steady(20)))
    first = two.index(b"avc1", two.index(b"stsd"))
    assert probe_video(two[:first] + b"zzzz" + two[first + 4 :]).num_frames == 20
