"""Media in a prompt: every golden case, sound that is shorter, longer or later, and counting beforehand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_pipeline.image import smart_resize
from mm_pipeline.prompt import (
    ExpansionSettings,
    MediaShape,
    MediaSlot,
    MediaSpan,
    SpecialTokens,
    VideoLayout,
    expand,
    num_prompt_tokens,
)
from mm_pipeline.prompt.layout import blocks_of, timestamp
from tests.golden import load_golden_json

SPACE = 1000
NAMES = SpecialTokens.__dataclass_fields__
TOKENS = SpecialTokens(**{name: index for index, name in enumerate(NAMES)})


def encode_text(text):
    """One token per character, far from the special ones."""
    return [SPACE * 1000 + ord(letter) for letter in text]


@pytest.fixture(scope="module")
def golden():
    return load_golden_json("golden_expansion")


@pytest.fixture(scope="module")
def real_tokens(golden):
    return SpecialTokens(**{name: golden["token_ids"][name] for name in NAMES})


def expanded_alone(item, tokens, settings=ExpansionSettings()):  # noqa: B008
    slot = MediaSlot(index=0, modality=item.modality)
    return expand(([1, 2], slot, [3]), [item], tokens, encode_text, settings)


def check_golden(case, item, tokens, settings=ExpansionSettings()):  # noqa: B008
    expected = []
    for segment in case["segments"]:
        expected += encode_text(segment["text"]) if "text" in segment else [segment["id"]] * segment["count"]
    expanded = expanded_alone(item, tokens, settings)
    assert list(expanded.token_ids) == [1, 2, *expected, 3]
    assert num_prompt_tokens(item, tokens, encode_text, settings) == len(expected)
    num_special = sum(segment.get("count", 0) for segment in case["segments"])
    assert num_special == case["total_special_tokens"]
    pads = {"image": tokens.image_pad, "video": tokens.video_pad, "audio": tokens.audio_pad}
    for span in expanded.spans:
        rows = expanded.token_ids[span.start : span.start + span.length]
        assert rows == (pads[span.modality],) * span.length
    assert sum(span.length for span in expanded.spans) == sum(
        segment["count"] for segment in case["segments"] if segment.get("id") in pads.values()
    )
    return expanded


def num_audio_tokens(num_mel_frames):
    rows = ((num_mel_frames - 1) // 2 + 2) // 2
    return -(-rows // 4)


def test_golden_images(golden, real_tokens):
    for case in golden["cases"]["image"]:
        height, width = smart_resize(
            case["height"], case["width"], factor=32, min_pixels=8192, max_pixels=8_388_608
        )
        assert case["grid_thw"] == [1, height // 16, width // 16]
        item = MediaShape(modality="image", num_tokens=height * width // 1024)
        expanded = check_golden(case, item, real_tokens)
        (span,) = expanded.spans
        assert span == MediaSpan(start=3, length=item.num_tokens, media_index=0, offset=0, modality="image")


def test_golden_sounds(golden, real_tokens):
    for case in golden["cases"]["audio"]:
        num_tokens = (
            num_audio_tokens(case["mel_frames"])
            if "mel_frames" in case
            else -(-case["pretokenized_code_frames"] // 4)
        )
        check_golden(case, MediaShape(modality="audio", num_tokens=num_tokens), real_tokens)


def layout_of(case, **changes):
    _, height, width = case["grid_thw"]
    fields = {"frame_times_s": tuple(case["sampled_timestamps"]), "tokens_per_unit": height * width // 4}
    return VideoLayout(**{**fields, **changes})


def test_golden_videos(golden, real_tokens):
    for case in golden["cases"]["video"]:
        layout = layout_of(case)
        assert layout.num_units == case["grid_thw"][0]
        expanded = check_golden(case, MediaShape.of_video(layout), real_tokens)
        assert [span.offset for span in expanded.spans] == [
            unit * layout.tokens_per_unit for unit in range(layout.num_units)
        ]
        assert expanded.notes == ()


def test_golden_videos_with_sound(golden, real_tokens):
    cases = golden["cases"]["video_with_audio"]
    done = [case for case in cases if "error" not in case]
    assert len(done) == 9
    for case in done:
        settings = ExpansionSettings(audio_interleave_s=case["video_audio_interleave_length"])
        total = num_audio_tokens(case["mel_frames"])
        assert total == case["audio_tokens_from_encoder"]
        layout = layout_of(case, audio_tokens=total)
        expanded = check_golden(case, MediaShape.of_video(layout), real_tokens, settings)
        sound = [span for span in expanded.spans if span.modality == "audio"]
        assert sum(span.length for span in sound) == case["audio_placeholders"]
        assert_rows_in_order(expanded.spans, layout)
        assert len(expanded.notes) == (case["audio_placeholders"] < total)


def assert_rows_in_order(spans, layout):
    """Video rows are all there in order; audio rows start after them and leave none out in between."""
    for modality, begin in (("video", 0), ("audio", layout.num_video_tokens)):
        for span in spans:
            if span.modality == modality:
                assert span.offset == begin
                begin += span.length
        assert begin <= layout.num_tokens
        if modality == "video":
            assert begin == layout.num_video_tokens


def test_sound_that_ends_early_leaves_later_units_silent(golden, real_tokens):
    """The reference refuses such a clip."""
    refused = [case for case in golden["cases"]["video_with_audio"] if "error" in case]
    assert {case["video_audio_interleave_length"] for case in refused} == {0.0, -1, 4}
    like = golden["cases"]["video_with_audio"][0]
    for case in refused:
        num_tokens = num_audio_tokens(int(case["audio_seconds"] * 100) + 1)
        layout = layout_of(like, audio_tokens=num_tokens)
        settings = ExpansionSettings(audio_interleave_s=case["video_audio_interleave_length"])
        lengths = [block.last_audio - block.first_audio for block in blocks_of(layout, settings)]
        # Units begin at 0, 2.2, 4.4, 6.6 and 8.8 s; 4 s of sound are 25 or 26 rows, 13 of them before 2.2 s.
        assert (
            lengths
            == {0.0: [13, num_tokens - 13, 0, 0, 0], -1: [num_tokens], 4: [num_tokens, 0, 0]}[
                case["video_audio_interleave_length"]
            ]
        )
        expanded = expanded_alone(MediaShape.of_video(layout), real_tokens, settings)
        assert expanded.token_ids.count(real_tokens.audio_start) == sum(length > 0 for length in lengths)
        assert expanded.token_ids.count(real_tokens.video_pad) == layout.num_video_tokens
        assert expanded.notes == ()


def test_sound_after_the_last_frame_is_left_out_and_told_or_kept():
    layout = VideoLayout(frame_times_s=(0.0, 1.0, 2.0, 3.0), tokens_per_unit=2, audio_tokens=50)
    cut = expanded_alone(MediaShape.of_video(layout), TOKENS)
    # Until 4 s, one interval after the last frame: 25 rows of the 8 s.
    assert [span.length for span in cut.spans if span.modality == "audio"] == [12, 13]
    assert cut.notes == (
        "media item 0: the last 4.0 s of its sound come after its last frame and were left out",
    )
    kept = VideoLayout(
        frame_times_s=(0.0, 1.0, 2.0, 3.0), tokens_per_unit=2, audio_tokens=50, keep_surplus_audio=True
    )
    whole = expanded_alone(MediaShape.of_video(kept), TOKENS)
    assert [span.length for span in whole.spans if span.modality == "audio"] == [12, 38]
    assert whole.notes == ()


def test_a_part_of_a_video_keeps_its_own_clock():
    """Frames from 100 s on with sound from there on: the texts say 01:40, the rows begin at the first."""
    times = tuple(100.0 + second for second in range(4))
    layout = VideoLayout(frame_times_s=times, tokens_per_unit=1, audio_tokens=25, audio_start_s=100.0)
    assert [(block.start_s, block.first_audio, block.last_audio) for block in plain_blocks(layout)] == [
        (100.0, 0, 12),
        (102.0, 12, 25),
    ]
    expanded = expanded_alone(MediaShape.of_video(layout), TOKENS)
    assert list(expanded.token_ids[3:8]) == encode_text("01:40")


def plain_blocks(layout):
    return blocks_of(layout, ExpansionSettings())


def test_sound_before_the_first_frame_belongs_to_the_first_unit():
    layout = VideoLayout(frame_times_s=(0.9, 1.9, 2.9, 3.9), tokens_per_unit=1, audio_tokens=30)
    assert [(block.first_audio, block.last_audio) for block in plain_blocks(layout)] == [(0, 18), (18, 30)]


times = st.lists(st.floats(0, 50_000), min_size=1, max_size=12).map(sorted)


@given(
    times=times,
    audio_tokens=st.integers(0, 400),
    frames_per_unit=st.sampled_from([1, 2, 3]),
    interleave=st.sampled_from([0.0, -1.0, 0.5, 4.0, 60.0]),
    audio_start=st.floats(0, 100),
    keep=st.booleans(),
)
def test_every_video_row_once_and_sound_in_order(
    times, audio_tokens, frames_per_unit, interleave, audio_start, keep
):
    layout = VideoLayout(
        frame_times_s=tuple(times),
        tokens_per_unit=3,
        audio_tokens=audio_tokens,
        frames_per_unit=frames_per_unit,
        audio_start_s=audio_start,
        keep_surplus_audio=keep,
    )
    settings = ExpansionSettings(audio_interleave_s=interleave)
    item = MediaShape.of_video(layout)
    expanded = expanded_alone(item, TOKENS, settings)
    assert_rows_in_order(expanded.spans, layout)
    assert all(span.length > 0 for span in expanded.spans)
    assert len(expanded.token_ids) - 3 == num_prompt_tokens(item, TOKENS, encode_text, settings)
    num_sound = sum(span.length for span in expanded.spans if span.modality == "audio")
    assert (num_sound == audio_tokens) == (expanded.notes == ())
    if keep:
        assert num_sound == audio_tokens


def test_several_items_take_their_own_rows():
    video = MediaShape.of_video(VideoLayout(frame_times_s=(0.0, 0.5), tokens_per_unit=2, audio_tokens=5))
    media = [MediaShape(modality="audio", num_tokens=4), video, MediaShape(modality="image", num_tokens=1)]
    order = ((1, "video"), (0, "audio"), (2, "image"))
    prompt = tuple(MediaSlot(index=index, modality=modality) for index, modality in order)
    expanded = expand(prompt, media, TOKENS, encode_text)
    assert [(span.media_index, span.modality, span.offset, span.length) for span in expanded.spans] == [
        (1, "video", 0, 2),
        (1, "audio", 2, 5),
        (0, "audio", 0, 4),
        (2, "image", 0, 1),
    ]


def test_timestamps(golden):
    for seconds, text in golden["format_timestamp"]:
        assert timestamp(seconds) == text


def test_settings_come_from_the_checkpoint():
    assert ExpansionSettings.from_config({}) == ExpansionSettings()
    processor = {
        "video_audio_interleave_length": 4,
        "audio_input_id_per_second": 50.0,
        "audio_group_size": 5,
    }
    assert ExpansionSettings.from_config({"processor_config": processor}) == ExpansionSettings(
        audio_interleave_s=4.0, audio_tokens_per_s=10.0
    )
    with pytest.raises(ValueError, match="use_video_timestamps is false"):
        ExpansionSettings.from_config({"processor_config": {"use_video_timestamps": False}})
    with pytest.raises(ValueError, match="audio_interleave_s is -2"):
        ExpansionSettings(audio_interleave_s=-2)
    with pytest.raises(ValueError, match="audio_tokens_per_s is 0"):
        ExpansionSettings(audio_tokens_per_s=0)


def test_wrong_layouts():
    with pytest.raises(ValueError, match="at least one time"):
        VideoLayout(frame_times_s=(), tokens_per_unit=1)
    with pytest.raises(ValueError, match="none before the one ahead"):
        VideoLayout(frame_times_s=(1.0, 0.5), tokens_per_unit=1)
    with pytest.raises(ValueError, match="tokens_per_unit 0"):
        VideoLayout(frame_times_s=(0.0,), tokens_per_unit=0)


def test_mismatches_are_errors():
    picture, sound = MediaShape(modality="image", num_tokens=1), MediaShape(modality="audio", num_tokens=1)
    slot = MediaSlot(index=0, modality="image")
    with pytest.raises(ValueError, match="1 media slots, but 2"):
        expand((slot,), [picture, picture], TOKENS, encode_text)
    with pytest.raises(ValueError, match="is audio; its place in the prompt is for image"):
        expand((slot,), [sound], TOKENS, encode_text)
    with pytest.raises(ValueError, match="'smell' have no place"):
        expanded_alone(MediaShape(modality="smell", num_tokens=1), TOKENS)
    with pytest.raises(ValueError, match="a video of 7 embeddings has no layout"):
        expanded_alone(MediaShape(modality="video", num_tokens=7), TOKENS)
    layout = VideoLayout(frame_times_s=(0.0,), tokens_per_unit=4)
    with pytest.raises(ValueError, match="of 7 embeddings has a layout of 4"):
        expanded_alone(MediaShape(modality="video", num_tokens=7, layout=layout), TOKENS)
