"""`mmserve inspect`: the table, the totals, damage in words, JSON, and a contact sheet with the right frames."""

import json

import numpy as np
import pytest
from PIL import Image

from mm_pipeline.options import MediaOptions
from serve_apps.cli import main
from serve_apps.inspect import ContactSheet, as_text, inspect_file
from tests.media_files import SOUND_FILES, VIDEO_FILES, damage, streams
from tests.media_files.picture import is_upright, picture, read_number


@pytest.fixture
def written(tmp_path):
    """Writes bytes to a file; gives its path."""

    def write(data, name="item"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def test_video_with_sound(written):
    path = written(streams.video_with_sound(2, 1.0))
    report = inspect_file(path, config={}, options=MediaOptions())
    video, sound = report.video, report.sound
    assert (video.width, video.height, video.frames) == (192, 128, 60)
    assert [unit.tokens for unit in video.units] == [6 * 4] * 4
    assert video.tokens == 96
    assert {unit.frame_bytes for unit in video.units} == {2 * 3 * 192 * 128}
    assert {unit.embedding_bytes for unit in video.units} == {24 * 4096 * 2}
    assert [unit.stamp for unit in video.units] == ["00:00", "00:00", "00:01", "00:01"]
    assert sound.seconds == pytest.approx(1.0, abs=1 / 24_000)
    # 101 mel frames, 51 after the convolution, 26 after pooling, 7 groups of 4.
    assert sound.tokens == 7
    assert report.damage == ()


def test_options_and_checkpoint(written, tmp_path):
    path = written(VIDEO_FILES["plain"]().data)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config = {"hidden_size": 64, "processor_config": {"video_max_pixels": 4096, "video_min_pixels": 1024}}
    (folder / "config.json").write_text(json.dumps(config))
    options = MediaOptions(fps=10, max_frames=6, start_s=0.5, end_s=1.5)
    video = inspect_file(path, config=config, options=options).video
    times = [time for unit in video.units for time in unit.times_s]
    assert len(times) == 6
    assert times[0] == pytest.approx(0.5)
    assert 1.4 < times[-1] < 1.5
    assert video.sampled_width * video.sampled_height <= 4096
    assert video.units[0].embedding_bytes == video.units[0].tokens * 64 * 2


def test_json(written, capsys):
    path = written(VIDEO_FILES["phone_portrait"]().data)
    assert main(["inspect", str(path), "--json", "--fps", "2"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["video"]["rotation"] == 90
    assert (shown["video"]["width"], shown["video"]["coded_width"]) == (144, 256)
    assert sum(len(unit["times_s"]) for unit in shown["video"]["units"]) == 12
    assert shown["sound"] is None


def test_text(written, capsys):
    path = written(VIDEO_FILES["phone_portrait"]().data)
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "144 x 256 (stored 256 x 144, turned 90 degrees clockwise)" in shown
    assert "sampled: 8 frames of 128 x 256, 128 tokens" in shown
    assert "sound: none" in shown
    assert "damage or remark: none" in shown


def test_a_long_table_loses_its_middle(written):
    report = inspect_file(
        written(VIDEO_FILES["one_gop"]().data), config={}, options=MediaOptions(fps=60, max_frames=124)
    )
    assert len(report.video.units) == 60
    assert " more" not in as_text(report)
    report = inspect_file(
        written(VIDEO_FILES["fps_240"]().data), config={}, options=MediaOptions(fps=240, max_frames=200)
    )
    text = as_text(report)
    assert "40 more" in text
    assert len(text.splitlines()) < 80


def test_sound_alone(written, capsys):
    path = written(SOUND_FILES["flac_48k"]().data)
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "sound: flac, 48000 Hz, 1 channel; 2.000 s decoded, 13 tokens" in shown
    assert "video" not in shown.split(":", 1)[1]


def test_damage_is_told(written):
    report = inspect_file(written(damage.scratched()), config={}, options=MediaOptions(fps=30))
    assert report.video.lost_frames > 20
    assert any("did not decode and repeat a neighbour" in note for note in report.damage)
    empty = inspect_file(written(streams.empty_sound_track()), config={}, options=MediaOptions())
    assert empty.sound is None
    assert "the audio track is empty" in empty.damage


def test_contact_sheet(written, tmp_path):
    """Every sampled frame is on the sheet, in order and upright."""
    path, out = written(VIDEO_FILES["phone_portrait"]().data), tmp_path / "sheet.png"
    assert main(["inspect", str(path), "--contact-sheet", str(out)]) == 0
    sheet = np.asarray(Image.open(out).convert("RGB"))
    report = inspect_file(path, config={}, options=MediaOptions())
    times = [time for unit in report.video.units for time in unit.times_s]
    file = VIDEO_FILES["phone_portrait"]()
    # 128 x 256 shrunk to an area of 30,000: 122 x 245, six in a row, labels of 20 under each.
    for i, time in enumerate(times):
        left, top = 8 + i % 6 * (122 + 8), 30 + i // 6 * (245 + 20 + 8)
        thumb = sheet[top : top + 245, left : left + 122]
        assert is_upright(thumb)
        assert file.times_s[read_number(thumb)] == pytest.approx(time, abs=0.001)
        label = sheet[top + 245 : top + 265, left : left + 122]
        assert label.min() < 100, "there is a label under the frame"


def test_a_large_sheet_keeps_an_even_choice():
    sheet = ContactSheet(most_frames=10)
    frames = np.stack([picture(i) for i in range(50)]).transpose(0, 3, 1, 2)
    sheet.add(frames, tuple(float(i) for i in range(50)))
    drawn = np.asarray(sheet.draw("fifty"))
    numbers = []
    for i in range(7):
        left, top = 8 + i % 6 * 200, 30 + i // 6 * (128 + 28)
        numbers.append(read_number(drawn[top : top + 128, left : left + 192]))
    assert numbers == list(range(0, 50, 8))
    with pytest.raises(ValueError, match="no frames"):
        ContactSheet().draw("nothing")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["/does/not/exist.mp4"], "there is no file /does/not/exist.mp4"),
        (["{video}", "--checkpoint", "/does/not/exist"], "no readable config.json"),
        (["{text}"], "no audio or video file"),
        (["{sound}", "--contact-sheet", "{folder}/x.png"], "nothing to draw"),
        (["{video}", "--contact-sheet", "{folder}/x.nope"], "cannot write the contact sheet"),
        (["{video}", "--start-s", "9"], "start_s is 9"),
        (["{video}", "--fps", "0"], "fps is 0"),
        (["{video}", "--max-frames", "4000"], "max_frames is 4000"),
    ],
)
def test_mistakes_are_one_line(written, tmp_path, capsys, arguments, part):
    names = {
        "video": written(VIDEO_FILES["plain"]().data, "plain.mp4"),
        "sound": written(SOUND_FILES["flac_48k"]().data, "tone.flac"),
        "text": written(b"hello, this is text\n" * 50, "text.bin"),
        "folder": tmp_path,
    }
    assert main(["inspect", *(argument.format(**names) for argument in arguments)]) == 2
    shown = capsys.readouterr().err
    assert part in shown
    assert shown.count("\n") == 1
