from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mm_pipeline.errors import InvalidMediaError, MediaTooLargeError
from mm_pipeline.image.resize import flatten_patches
from mm_pipeline.image.settings import ImageSettings
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from mm_pipeline.video import VideoInfo, VideoSettings, plan_frames
from mm_pipeline.video.chunks import join_runs, plan_runs
from mm_pipeline.video.colour import Colour
from mm_pipeline.video.index import FrameIndex, KeyPoint
from mm_pipeline.video.patches import video_patches
from mm_pipeline.video.probe import orientation_of
from mm_pipeline.video.scale import Orientation
from tests.golden import load_golden, load_golden_json

CLOCK = 90_000


def info_of(ticks, last_ticks, keys=(0,)):
    index = FrameIndex(
        time_base=Fraction(1, CLOCK),
        ticks=np.array(ticks, dtype=np.int64),
        last_ticks=last_ticks,
        keys=tuple(
            KeyPoint(ticks=int(ticks[k]), packet=k, pts=int(ticks[k]), dts=int(ticks[k]), byte=None)
            for k in keys
        ),
        num_packets=len(ticks),
    )
    colour = Colour(
        matrix="bt709", full_range=False, transfer="sdr", wide_gamut=False, bits=8, is_guessed=False
    )
    return VideoInfo(
        codec="h264", container="mp4", stream_number=0, coded_width=640, coded_height=360, width=640, height=360,
        rotation=0, orientation=Orientation(), sar=Fraction(1), colour=colour, interlaced=False, has_alpha=False,
        duration_s=index.duration_s, start_s=0.0, average_fps=30.0, has_audio=False, index=index,
    )  # fmt: skip


@pytest.mark.parametrize("row", load_golden_json("golden_expansion")["frame_sampling_table"])
def test_sampling_table(row):
    step = Fraction(CLOCK) / Fraction(row["fps"]).limit_denominator(1000)
    ticks = [round(number * step) for number in range(row["total_frames"])]
    plan = plan_frames(info_of(ticks, round(step)), VideoSettings())
    numbers = np.searchsorted(ticks, plan.ticks).tolist()
    assert len(numbers) == row["nframes"]
    if "..." in row["indices"]:
        cut = row["indices"].index("...")
        numbers = [*numbers[:cut], "...", *numbers[cut + 1 - len(row["indices"]) :]]
    assert numbers == row["indices"]


@pytest.mark.parametrize("row", load_golden_json("config_image_preprocess")["video_frame_cap_table"])
def test_frame_cap_table(row):
    assert VideoSettings().frame_size(row["height"], row["width"], row["frames"]) == tuple(row["resized_hw"])


def test_golden_patches():
    tensors = load_golden("golden_image_preprocess")
    made = video_patches(tensors["video.frames_uint8"], VideoSettings())
    assert made.grid_thw == tuple(tensors["video.grid_thw"].tolist())
    assert made.num_tokens == len(made.patches) // 4
    torch.testing.assert_close(made.patches, tensors["video.pixel_values"], rtol=0, atol=1e-4)


def test_patches_of_frames_at_final_size_are_not_resized():
    frames = torch.randint(0, 256, (4, 3, 96, 128), dtype=torch.uint8)
    settings = VideoSettings()
    mean, std = (255 * torch.tensor(v).view(1, 3, 1, 1) for v in (settings.mean, settings.std))
    expected = flatten_patches((frames - mean) / std, ImageSettings())
    torch.testing.assert_close(video_patches(frames, settings).patches, expected)
    with pytest.raises(ValueError, match="uint8"):
        video_patches(frames.float(), settings)


@given(
    gaps=st.lists(st.integers(1, 5 * CLOCK), min_size=1, max_size=200),
    fps=st.sampled_from([0.2, 1.0, 7.0]),
    part=st.tuples(st.floats(0, 0.9), st.floats(0.05, 1.0)),
)
def test_plan_of_any_timing(gaps, fps, part):
    ticks = np.cumsum([0, *gaps])
    info = info_of(ticks, gaps[-1])
    start = part[0] * info.duration_s
    end = start + max(part[1] * (info.duration_s - start), 0.01)
    plan = plan_frames(info, VideoSettings(fps=fps, max_frames=64, start_s=start, end_s=end))
    assert plan.num_frames % 2 == 0
    assert plan.num_frames <= 64
    assert set(plan.ticks) <= set(ticks.tolist())
    times = np.array(plan.frame_times_s)
    assert (np.diff(times) >= 0).all()
    assert plan.size[0] % 32 == plan.size[1] % 32 == 0
    # A frame is on display at the time that is shown for it.
    shown = np.searchsorted(ticks, times * CLOCK + 0.5, side="right") - 1
    assert ticks[shown].tolist() == list(plan.ticks)


@given(st.data())
def test_runs_cover_the_plan(data):
    count = data.draw(st.integers(2, 300))
    keys = sorted({0, *data.draw(st.lists(st.integers(0, count - 1), max_size=20))})
    plan = plan_frames(
        info_of([3000 * number for number in range(count)], 3000, keys), VideoSettings(fps=5.0)
    )
    runs = plan_runs(plan)
    assert [tick for run in runs for tick in run.targets] == list(dict.fromkeys(plan.ticks))
    assert [run for chunk in join_runs(runs) for run in chunk] == runs
    for run in runs:
        start = 3000 * keys[run.key]
        assert start <= run.targets[0]
        assert run.cost == (run.targets[-1] - start) // 3000 + 1


def test_wishes_stay_under_the_limits():
    settings, limits = VideoSettings(), MediaLimits(max_video_frames=100)
    lowered = settings.lowered(MediaOptions(fps=2.0, max_frames=4, max_pixels=4096), limits)
    assert (lowered.fps, lowered.min_frames, lowered.max_frames) == (2.0, 4, 4)
    assert (lowered.min_pixels, lowered.max_pixels) == (4096, 4096)
    assert settings.lowered(MediaOptions(), limits).max_frames == 100
    assert lowered.key_settings() != settings.key_settings()
    with pytest.raises(MediaTooLargeError, match="max_frames is 101"):
        settings.lowered(MediaOptions(max_frames=101), limits)
    with pytest.raises(InvalidMediaError, match="max_pixels"):
        settings.lowered(MediaOptions(max_pixels=1 << 30), limits)
    with pytest.raises(InvalidMediaError, match="start_s is 9"):
        plan_frames(info_of([0, 3000], 3000), VideoSettings(start_s=9))


@pytest.mark.parametrize(
    ("matrix", "orientation"),
    [
        ((1, 0, 0, 0, 1, 0), Orientation()),
        ((0, 1, 0, -1, 0, 0), Orientation(quarter_turns=3)),
        ((-1, 0, 0, 0, -1, 0), Orientation(quarter_turns=2)),
        ((-1, 0, 0, 0, 1, 0), Orientation(is_mirrored=True)),
    ],
)
def test_display_matrix(matrix, orientation):
    assert orientation_of((*matrix, 0, 0, 1)) == orientation
