"""`mmserve bench audio` on a minute of sound, and on peers that do other work."""

import argparse

import pytest

from serve_apps.bench import audio

KEYS = {"ratio_peer", "ratio_tuned", "peer", "peak_rss_mb", "import_rss_mb", "ours_s", "peers_s", "growth"}


def run(folder, *arguments):
    parser = argparse.ArgumentParser()
    audio.add_arguments(parser)
    return audio.run(parser.parse_args(["--folder", str(folder), *arguments]))


def test_a_minute(tmp_path, capsys):
    result = run(tmp_path, "--minutes", "1", "--growth")
    assert set(result) == KEYS
    assert result["ratio_peer"] is None
    assert result["growth"] == []
    assert result["import_rss_mb"] < result["peak_rss_mb"]
    assert "1 minutes of AAC" in capsys.readouterr().out


def test_impossible_numbers(tmp_path):
    with pytest.raises(ValueError, match="minutes 0"):
        run(tmp_path, "--minutes", "0")


def test_a_peer_with_other_frames_does_not_count():
    ours, its = audio._Runs(frames=6001, mean=-3.0), audio._Runs(frames=6001, mean=-2.6)
    with pytest.raises(ValueError, match="did not do the same work"):
        audio._check_same("peer", its, ours)
