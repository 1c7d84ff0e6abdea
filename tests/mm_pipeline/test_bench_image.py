import argparse

import pytest

from serve_apps.bench import image


def parse(*arguments):
    parser = argparse.ArgumentParser()
    image.add_arguments(parser)
    return parser.parse_args(["--width", "320", "--height", "240", "--rounds", "1", *arguments])


def test_bench_prints_a_table_and_returns_its_keys(capsys):
    result = image.run(parse("--peers"))
    assert result["ratio_transformers"] > 0
    assert "transformers" in result["best_peer"]
    assert "ours, plain path" in capsys.readouterr().out
    assert image.run(parse())["ratio_transformers"] is None


def test_bench_refuses_impossible_numbers():
    with pytest.raises(ValueError, match="rounds 0"):
        image.run(parse("--rounds", "0"))
