"""Every video file that has one right reading: which frames, at which times, how large, in which colours."""

import math

import numpy as np
import pytest

from mm_pipeline.video import VideoSettings, probe_video
from tests.media_files import VIDEO_FILES
from tests.media_files.oracle import full_decode
from tests.media_files.picture import read_patches
from tests.nasty.support import decoded_patches, displayed_at, sample

NAMES = sorted(VIDEO_FILES)
# What the plain decode cannot tell: it sees coded pixels, the first stream, and the clock of a second recording.
NOT_FOR_ORACLE = {
    "rotated_90", "rotated_180", "rotated_270", "phone_portrait", "two_videos", "ts_twice", "raw_h264",
    "animated_webp",
}  # fmt: skip
COLOURED = [
    "bt601_limited", "bt601_full", "bt709_limited", "bt709_full", "bt2020_limited", "bt2020_full", "untagged_small",
    "untagged_720p", "ten_bit",
]  # fmt: skip
TURNED = {"rotated_90": 270, "rotated_180": 180, "rotated_270": 90, "phone_portrait": 90}


@pytest.mark.parametrize("name", sorted(set(NAMES) - NOT_FOR_ORACLE))
def test_the_file_is_what_it_says(name):
    file = VIDEO_FILES[name]()
    seen = full_decode(file.data)
    assert seen.numbers == tuple(number % 256 for number in file.numbers)
    assert seen.times_s == pytest.approx(file.times_s, abs=file.time_error_s)
    assert seen.num_bad_packets == 0


@pytest.mark.parametrize("name", NAMES)
def test_probe(name):
    file = VIDEO_FILES[name]()
    info = probe_video(file.data)
    assert (info.width, info.height) == (file.width, file.height)
    assert info.num_frames == len(file.numbers)
    gaps = np.diff(file.times_s)
    last = file.times_s[-1]
    assert last - 0.01 <= info.duration_s <= last + 2 * float(gaps.max(initial=1.0))
    assert info.rotation == TURNED.get(name, 0)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_frame(name, num_threads):
    file = VIDEO_FILES[name]()
    sampled = sample(file.data, VideoSettings(fps=1000.0, max_pixels=1 << 20), num_threads)
    assert sampled.numbers == [displayed_at(file, time) for time in sampled.times_s]
    assert sampled.report.lost_frames == 0
    assert sampled.times_s[0] == 0
    assert len(sampled.times_s) == max(len(file.numbers) // 2 * 2, 2)
    assert sampled.times_s[-1] == pytest.approx(file.times_s[-1], abs=0.002)


@pytest.mark.parametrize("name", NAMES)
def test_reference_sampling(name):
    """The default settings: one frame a second, at least eight, spread from the first frame to the last."""
    file = VIDEO_FILES[name]()
    sampled = sample(file.data, VideoSettings(max_pixels=1 << 20))
    assert sampled.numbers == [displayed_at(file, time) for time in sampled.times_s]
    num_wished = max(8, int(probe_video(file.data).duration_s + 0.01))
    count = min(num_wished, len(file.numbers)) // 2 * 2
    assert len(sampled.times_s) == max(count, 2)
    even = np.linspace(0, file.times_s[-1], max(count, 1))
    longest = float(np.diff(file.times_s).max(initial=0.0)) + 0.002
    assert all(-longest <= time - at <= 0.002 for time, at in zip(sampled.times_s, even, strict=False))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("huge_8k", "one_frame", "slides")])
def test_trimmed(name):
    file = VIDEO_FILES[name]()
    last = file.times_s[-1]
    start, end = last * 0.37, last * 0.81
    sampled = sample(file.data, VideoSettings(fps=1000.0, start_s=start, end_s=end))
    assert sampled.numbers == [displayed_at(file, time) for time in sampled.times_s]
    longest = float(np.diff(file.times_s).max()) + 0.003
    assert start - longest <= sampled.times_s[0] <= start + 0.003
    assert end - longest <= sampled.times_s[-1] <= end


@pytest.mark.parametrize("name", COLOURED)
def test_colours(name):
    file = VIDEO_FILES[name]()
    frame = sample(file.data).frames[0]
    # Two levels, and the rounding of one.
    assert np.abs(read_patches(frame) - decoded_patches(file)).max() <= 2.5


@pytest.mark.parametrize("name", ["plain", "wide_pixels", "odd_size", "phone_portrait"])
def test_scaled_down(name):
    """To a size that is no multiple of the coded one; the picture stays readable and in proportion."""
    file = VIDEO_FILES[name]()
    sampled = sample(file.data, VideoSettings(fps=1000.0, max_pixels=96 * 96))
    height, width = sampled.plan.size
    assert height * width <= 96 * 96
    assert math.log2(width / height) == pytest.approx(math.log2(file.width / file.height), abs=0.6)
    assert sampled.numbers == [displayed_at(file, time) for time in sampled.times_s]
