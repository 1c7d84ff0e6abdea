"""Files that were cut or scratched: only the damaged part is lost, and the report says so."""

import numpy as np
import pytest

from mm_pipeline.audio import decode_audio
from mm_pipeline.errors import MediaError, UnsupportedMediaError
from mm_pipeline.video import probe_video
from tests.media_files import damage
from tests.nasty.support import sample

RATE = 24_000
FPS = 30


def right_numbers(sampled):
    """How many sampled frames show what the whole file shows at their time."""
    wanted = [round(time * FPS) for time in sampled.times_s]
    return sum(seen == number for seen, number in zip(sampled.numbers, wanted, strict=True))


@pytest.mark.parametrize("tenths", range(1, 10))
@pytest.mark.parametrize("container", sorted(damage.CONTAINERS))
def test_cut_video(container, tenths):
    data = damage.cut(damage.small_movie(container), tenths)
    if container == "mp4":
        # The index was at the end; without it nothing says where a frame is.
        with pytest.raises(UnsupportedMediaError):
            probe_video(data)
        return
    try:
        sampled = sample(data)
    except UnsupportedMediaError:
        assert tenths == 1, "headers take the first tenth at most"
        return
    # Pictures and sound are interleaved evenly, so a tenth of the bytes is about 0.2 s.
    assert len(sampled.times_s) / FPS >= 0.2 * tenths - 0.6
    assert right_numbers(sampled) >= len(sampled.times_s) - max(2, sampled.report.lost_frames)
    if container == "mp4_faststart":
        assert any("cut short" in note for note in sampled.report.notes)


@pytest.mark.parametrize("tenths", range(1, 10))
@pytest.mark.parametrize("container", sorted(damage.CONTAINERS))
def test_cut_sound(container, tenths):
    whole = np.concatenate(list(decode_audio(damage.small_movie(container), sample_rate=RATE)))
    try:
        part = np.concatenate(
            list(decode_audio(damage.cut(damage.small_movie(container), tenths), sample_rate=RATE))
        )
    except UnsupportedMediaError:
        assert container == "mp4" or tenths == 1
        return
    assert part.shape[0] / RATE >= 0.2 * tenths - 0.6
    # The last packet may be cut, and the resampler looks a little ahead.
    sure = max(0, min(part.shape[0], len(whole)) - RATE // 10)
    assert np.abs(part[:sure] - whole[:sure]).max(initial=0.0) < 1e-3


def test_scratched_packets_cost_their_group_only():
    sampled = sample(damage.scratched())
    assert len(sampled.times_s) == 240
    numbers = np.array([-1 if number is None else number for number in sampled.numbers])
    assert numbers[:96].tolist() == list(range(96))
    # The first whole group after the noise starts at 150.
    assert numbers[150:].tolist() == list(range(150, 240))
    assert sampled.report.damaged_packets > 20
    assert sampled.report.lost_frames > 20
    assert any("did not decode" in note for note in sampled.report.notes)


def test_a_hole_in_a_transport_stream():
    sampled = sample(damage.lost_packets())
    assert len(sampled.times_s) >= 48
    for time, number in zip(sampled.times_s, sampled.numbers, strict=True):
        at = round(time * FPS)
        # Packets of frames 22 to 31 are gone; the one before stays on display.
        assert number == at or (22 <= at < 32 and number == 21)
    # Sixty frames at 30 fps: the hole does not make the clip shorter.
    assert sampled.times_s[-1] == pytest.approx(59 / FPS, abs=0.002)


def test_no_media():
    for data in (b"", b"hello", b"\0" * 5000, b"\xff" * 5000, bytes(range(256)) * 40):
        with pytest.raises(UnsupportedMediaError) as caught:
            probe_video(data)
        assert "0x" not in caught.value.message
        assert isinstance(caught.value, MediaError)
