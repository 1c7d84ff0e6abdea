"""`mmserve`: quick help, one-line errors with exit code 2, settings from flags, the HTTP client, local answers."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import fields, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from llm_core.kv.tiers.settings import TierSettings
from mm_pipeline.limits import MediaLimits
from mm_pipeline.options import MediaOptions
from serve_apps.bench import BENCHES, format_table
from serve_apps.chat.service import ChatLimits
from serve_apps.cli import COMMANDS, CliError, main, parse
from serve_apps.cli import serve as serve_command
from serve_apps.cli.chat import media_url, request_body, timing_line
from serve_apps.cli.client import Client
from serve_apps.settings import ServerSettings
from tests.e2e.media import picture

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "ray", "transformers", "pydantic", "fastapi", "aiohttp")


def python(code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


def test_help_imports_nothing_heavy():
    begin = time.monotonic()
    result = python(
        "import sys\nfrom serve_apps.cli import main\ncode = main(['--help'])\n"
        f"print(code, [name for name in {HEAVY} if name in sys.modules])"
    )
    assert result.stdout.splitlines()[-1] == "0 []", result.stderr
    assert all(name in result.stdout for name in COMMANDS)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nope"], "there is no command 'nope'"),
        (["serve", "/does/not/exist"], "there is no folder /does/not/exist"),
        (["bench", "nope"], "there is no benchmark 'nope'"),
        (["chat", "hi", "--local"], "--local needs --checkpoint"),
        (["chat", "hi", "--url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9/v1"),
        (["chat", "hi", "--url", "ftp://x"], "not an http address"),
        (["chat", "hi", "--image", "/does/not/exist.png"], "cannot read /does/not/exist.png"),
        (["chat", "hi", "--local", "--checkpoint", "/does/not/exist"], "there is no folder"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, part, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["serve"], ["chat"], ["serve", "x", "--port", "many"], ["chat", "q", "--zzz"]]
)
def test_wrong_arguments_are_one_line_and_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as info:
        main(arguments)
    assert info.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_command_shows_the_help(capsys):
    assert main([]) == 2
    assert "make-checkpoint" in capsys.readouterr().err


def serve_settings(*arguments: str) -> ServerSettings:
    return serve_command.settings_from(parse("mmserve serve", "serve_apps.cli.serve", "", arguments))


def test_the_defaults_of_serve_are_those_of_the_settings(tiny, monkeypatch):
    monkeypatch.delenv(serve_command.API_KEY_VARIABLE, raising=False)
    assert serve_settings(str(tiny)) == ServerSettings(checkpoint=tiny).resolved()


def test_the_flags_of_serve_reach_the_settings(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv(serve_command.API_KEY_VARIABLE, "from-environment")
    flags = "--host 0.0.0.0 --port 9000 --model-name m --api-key k --max-context 100 --kv-memory-mib 7"
    flags += " --max-running 3 --max-queued 4 --max-requests 5 --default-max-tokens 6 --num-encoders 2"
    flags += (
        " --allowed-domain a.org --allowed-domain b.org --max-media-mib 9 --dtype float32 --num-threads 1"
    )
    flags += " --max-video-pixels 10 --max-video-frames 11 --max-media-duration-s 12 --decode-timeout-s 13"
    flags += " --decoder-workers 14 --request-timeout-s 15.5 --router round-robin"
    flags += " --embedding-store-bytes 16 --disk-store-bytes 17 --max-encoders 18 --encoder-queue-s 1.9"
    flags += " --scheduling fcfs --waiting-credit 20.5 --prefix-window-stride 21"
    flags += " --prefill-chunk-tokens 22 --kv-host-mib 23 --kv-disk-mib 24 --kv-tier-policy write_through"
    folders = ("--file-root", str(tmp_path), "--disk-store", str(tmp_path / "kept"))
    folders += ("--kv-folder", str(tmp_path / "kv"))
    settings = serve_settings(str(tiny), *flags.split(), *folders)
    assert (settings.host, settings.port, settings.model_name) == ("0.0.0.0", 9000, "m")
    assert settings.api_keys == ("k", "from-environment")
    assert settings.engine == replace(
        ServerSettings(checkpoint=tiny).engine,
        max_context=100,
        kv_memory_bytes=7 << 20,
        max_running=3,
        max_queued=4,
        dtype="float32",
        scheduling="fcfs",
        waiting_credit=20.5,
        prefix_window_stride=21,
        prefill_chunk_tokens=22,
        tiers=TierSettings(
            host_bytes=23 << 20, folder=tmp_path / "kv", disk_bytes=24 << 20, policy="write_through"
        ),
    )
    assert not serve_settings(str(tiny), "--no-prefix-cache").engine.prefix_cache
    assert settings.chat == ChatLimits(max_requests=5, default_max_tokens=6, request_timeout_s=15.5)
    assert (settings.router, settings.embedding_store_bytes) == ("round-robin", 16)
    assert (settings.disk_store, settings.disk_store_bytes) == (tmp_path / "kept", 17)
    assert (settings.max_encoders, settings.encoder_queue_s) == (18, 1.9)
    assert (settings.num_encoders, settings.num_threads, settings.decoder_workers) == (2, 1, 14)
    assert settings.media == MediaLimits(
        max_bytes=9 << 20,
        max_video_pixels=10,
        max_video_frames=11,
        max_media_duration_s=12.0,
        decode_timeout_s=13.0,
        allowed_domains=("a.org", "b.org"),
        file_root=tmp_path,
    )


@pytest.mark.parametrize(
    ("flag", "value", "message"),
    [
        ("--max-running", "0", "max_running is 0"),
        ("--request-timeout-s", "0", r"request_timeout_s is 0\.0; it must be greater than 0"),
        ("--waiting-credit", "0", r"waiting_credit is 0\.0; it must be more than 0"),
        ("--request-timeout-s", "inf", "request_timeout_s is inf"),
        ("--embedding-store-bytes", "-1", "embedding_store_bytes is -1"),
        ("--kv-host-mib", "-1", "host_bytes is -1048576, disk_bytes 0; neither can be less than 0"),
        ("--kv-folder", "somewhere", "give host_bytes and disk_bytes, too"),
    ],
)
def test_flags_out_of_range_are_refused(tiny, flag, value, message):
    with pytest.raises(CliError, match=message):
        serve_settings(str(tiny), flag, value)


def test_a_file_becomes_a_data_url_and_urls_stay(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"abc")
    assert media_url(str(path)) == "data:image/png;base64,YWJj"
    assert media_url("https://a.org/x.png") == "https://a.org/x.png"
    (tmp_path / "noname").write_bytes(b"")
    assert media_url(str(tmp_path / "noname")).startswith("data:application/octet-stream;")


def test_chat_local_streams_to_stdout_and_timings_to_stderr(tiny, tmp_path, capsys):
    path = tmp_path / "x.jpg"
    path.write_bytes(picture())
    arguments = ["chat", "What is it?", "--local", "--checkpoint", str(tiny), "--image", str(path)]
    assert main([*arguments, "--max-tokens", "5", "--temperature", "0"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip()
    assert "12 of images" in captured.err
    assert captured.err.count("\n") == 1


def test_chat_local_errors_are_one_line(tiny, capsys):
    assert main(["chat", "hi", "--local", "--checkpoint", str(tiny), "--image", "data:,text"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def chat_body(*arguments: str) -> dict:
    return request_body(parse("mmserve chat", "serve_apps.cli.chat", "", ["Why?", *arguments]))


def test_media_keep_the_order_of_the_command_line():
    urls = {"--video": "https://a.org/v", "--image": "https://a.org/i", "--audio": "https://a.org/a"}
    flags = ["--video", "--image", "--audio", "--image"]
    body = chat_body(*(word for flag in flags for word in (flag, urls[flag])))
    *parts, question = body["messages"][0]["content"]
    assert [part["type"] for part in parts] == ["video_url", "image_url", "audio_url", "image_url"]
    assert all(part[part["type"]] == {"url": urls[flag]} for part, flag in zip(parts, flags, strict=True))
    assert question == {"type": "text", "text": "Why?"}
    assert "mm_processor_kwargs" not in body


def test_sampling_wishes_are_those_of_the_api():
    arguments = "--fps 2 --min-frames 4 --max-frames 8 --max-pixels 9 --total-pixels 10 --start-s 1 --end-s 2"
    wishes = chat_body(*arguments.split(), "--no-audio-in-video")["mm_processor_kwargs"]
    assert wishes == {
        "fps": 2.0,
        "min_frames": 4,
        "max_frames": 8,
        "max_pixels": 9,
        "total_pixels": 10,
        "start_s": 1.0,
        "end_s": 2.0,
        "use_audio_in_video": False,
    }
    assert set(wishes) == {field.name for field in fields(MediaOptions)}


def test_timing_line_shows_the_modalities_that_are_there():
    details = {"cached_tokens": 1, "image_tokens": 0, "video_tokens": 8, "audio_tokens": 5}
    usage = {"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": details}
    assert timing_line(usage, {}).startswith("20 prompt tokens (8 of video, 5 of audio); 2 answer tokens")
    none = {**usage, "prompt_tokens_details": dict.fromkeys(details, 0)}
    assert timing_line(none, {}).startswith("20 prompt tokens; 2")


def test_damage_notes_are_shown_on_stderr(capsys):
    note = {"param": "messages.0.content.0", "modality": "video", "note": "3 frames were lost"}
    chunk = {"choices": [{"delta": {"content": "hi"}}], "media_notes": [note]}
    stream = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
    with answering(200, stream) as (address, _):
        assert main(["chat", "hi", "--model", "m", "--url", f"http://{address}"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "hi\n"
    assert "video: 3 frames were lost" in captured.err


def test_timing_line_shows_counts_and_stages():
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"image_tokens": 3}}
    assert (
        timing_line(usage, {"fetch_ms": 1.25})
        == "5 prompt tokens (3 of images); 2 answer tokens; ms: fetch 1.2"
    )


@contextmanager
def answering(status: int, body: bytes):
    """A server that answers everything alike, and keeps the headers it saw."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(dict(self.headers))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *args):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def test_the_client_reads_a_stream_and_sends_its_key():
    chunks = b'data: {"choices": [1]}\n\n: ping\n\ndata: {"choices": [2]}\n\ndata: [DONE]\n\n'
    with answering(200, chunks) as (address, seen):
        client = Client(f"http://{address}/v1/", api_key="k")
        assert [chunk["choices"] for chunk in client.chat_chunks({})] == [[1], [2]]
    assert seen[0]["Authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error": {"message": "No such thing."}}', "No such thing."),
        (502, b"<html>", "the server answered 502"),
        (200, b'data: {"error": {"message": "It broke."}}\n\n', "It broke."),
    ],
)
def test_the_client_shows_the_servers_message(status, body, message):
    with answering(status, body) as (address, _), pytest.raises(CliError, match=message):
        list(Client(address).chat_chunks({}))


def test_a_server_without_models():
    with answering(200, b'{"data": []}') as (address, _), pytest.raises(CliError, match="has no model"):
        Client(address).model()


def test_bench_passes_its_arguments_on_and_ends_with_json(monkeypatch, capsys):
    module = ModuleType("fake_bench")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--rounds", type=int)
        parser.add_argument("--peers", action="store_true")

    def run(args: argparse.Namespace) -> dict[str, object]:
        if args.rounds < 0:
            raise ValueError("rounds is -1; it must be at least 0")
        print("a table")
        return {"rounds": args.rounds, "peers": args.peers, "ratio": None}

    module.__dict__.update(add_arguments=add_arguments, run=run)
    monkeypatch.setitem(sys.modules, "fake_bench", module)
    monkeypatch.setitem(BENCHES, "fake", "fake_bench")
    assert main(["bench", "fake", "--rounds", "3", "--peers"]) == 0
    table, last = capsys.readouterr().out.splitlines()
    assert table == "a table"
    assert json.loads(last) == {"rounds": 3, "peers": True, "ratio": None}
    assert main(["bench", "fake", "--rounds", "-1"]) == 2


def test_tables_are_aligned():
    table = format_table(["what", "ms"], [["ours", 1.2345], ["theirs", 1234.5], ["none", None]])
    assert table.splitlines() == ["what      ms", "ours    1.23", "theirs  1234", "none       -"]
