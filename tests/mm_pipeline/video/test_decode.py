import argparse
import threading
from concurrent.futures import CancelledError

import numpy as np
import pytest

from mm_pipeline.errors import MediaTooLargeError, UnsupportedMediaError
from mm_pipeline.limits import MediaLimits
from mm_pipeline.video import VideoDecoder, VideoSettings, decode_video, plan_frames, probe_video
from serve_apps.bench import video
from tests.mm_pipeline.video.clips import clip, decoded_digests, plain_digests


def num_decoding_threads():
    return sum(thread.name == "video-decode" for thread in threading.enumerate())


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
@pytest.mark.parametrize("count", [8, 24, 96])
def test_pixels_of_a_full_decode(container, count, num_threads):
    data = clip(container=container)
    plan = plan_frames(probe_video(data), VideoSettings(fps=1000.0, max_frames=count))
    full = plain_digests(data)
    assert decoded_digests(data, plan, num_threads) == [(tick, full[tick]) for tick in plan.ticks]


def test_one_gop_uses_the_decoders_own_threads():
    data = clip(g="999")
    plan = plan_frames(probe_video(data), VideoSettings(fps=10.0))
    full = plain_digests(data)
    assert decoded_digests(data, plan, 4) == [(tick, full[tick]) for tick in plan.ticks]


def test_an_index_without_gaps_is_believed_and_one_with_is_not():
    assert probe_video(clip()).index.is_derived
    assert not probe_video(clip(container="matroska")).index.is_derived


def test_keyframes_only():
    data = clip()
    info = probe_video(data)
    plan = plan_frames(info, VideoSettings(fps=10.0, exact=False))
    assert set(plan.ticks) <= {key.ticks for key in info.keyframes}
    full = plain_digests(data)
    assert decoded_digests(data, plan, 2) == [(tick, full[tick]) for tick in plan.ticks]


def test_closing_and_cancelling_stop_all_threads():
    data = clip()
    plan = plan_frames(probe_video(data), VideoSettings(fps=1000.0))
    chunks = decode_video(data, plan, num_threads=3).chunks()
    first = next(chunks)
    assert first.frames.dtype == np.uint8
    chunks.close()
    assert num_decoding_threads() == 0

    cancel = threading.Event()
    chunks = decode_video(data, plan, num_threads=3, cancel=cancel).chunks()
    next(chunks)
    cancel.set()
    with pytest.raises(CancelledError):
        list(chunks)
    assert num_decoding_threads() == 0


def test_a_failing_thread_ends_the_decode():
    data = clip()

    def converter():
        def convert(frame):
            raise ZeroDivisionError

        return convert, (1,)

    plan = plan_frames(probe_video(data), VideoSettings())
    with pytest.raises(ZeroDivisionError):
        list(VideoDecoder(data, plan, converter=converter).chunks())
    assert num_decoding_threads() == 0


def test_lost_frames_repeat_a_neighbour_and_are_counted():
    data = bytearray(clip())
    info = probe_video(bytes(data))
    begin, end = (info.keyframes[number].byte for number in (1, 2))
    data[begin:end] = bytes(end - begin)
    # The index is the whole file's; the second of four GOPs is gone.
    plan = plan_frames(info, VideoSettings(fps=1000.0))
    decoder = decode_video(bytes(data), plan, num_threads=2)
    frames = np.concatenate([chunk.frames for chunk in decoder.chunks()])
    assert len(frames) == 96
    assert decoder.report.lost_frames == 24
    assert (frames[24:48] == frames[23]).all()
    assert any("24 sampled frames" in note for note in decoder.report.notes)


def test_limits_and_what_is_no_video():
    data = clip()
    with pytest.raises(MediaTooLargeError, match="max_video_pixels"):
        probe_video(data, MediaLimits(max_video_pixels=100))
    with pytest.raises(MediaTooLargeError, match="max_media_duration_s"):
        probe_video(data, MediaLimits(max_media_duration_s=1.0))
    for junk in (b"", b"junk" * 100):
        with pytest.raises(UnsupportedMediaError):
            probe_video(junk)


def test_bench_refuses_impossible_numbers():
    parser = argparse.ArgumentParser()
    video.add_arguments(parser)
    with pytest.raises(ValueError, match="rounds 0"):
        video.run(parser.parse_args(["--rounds", "0"]))
