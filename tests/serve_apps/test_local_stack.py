"""The whole chat service on a real tiny checkpoint in this process, under the limits a server has by default."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from llm_core.engine import EngineSettings
from mm_pipeline.fetch import Fetcher
from mm_pipeline.limits import MediaLimits
from mm_pipeline.metrics import MemoryRecorder
from mm_pipeline.store import create_store
from serve_apps.api.routes import ApiSettings, create_api
from serve_apps.chat.create import create_chat_service, system_fingerprint
from serve_apps.chat.local import LocalBackend
from serve_apps.chat.service import ChatLimits
from tests.e2e.media import data_url, picture, web_server
from tests.helpers import wait_until

LIMITS = MediaLimits()
# One video and a few pictures.
STORE_BYTES = 1 << 17
CLIPS = Path(__file__).parents[2] / "samples" / "clips"


@pytest.fixture(scope="module")
def backend(tiny: Path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Answers are compared bit for bit, and a prompt that goes on from the cache rounds differently.
    engine = EngineSettings(dtype="float32", kv_memory_bytes=64 << 20, prefix_cache=False)
    store = create_store(STORE_BYTES)
    backend = LocalBackend.from_checkpoint(tiny, engine=engine, media=LIMITS, store=store)
    yield backend
    backend.close()
    torch.set_num_threads(threads)


@pytest.fixture
async def client(tiny: Path, backend: LocalBackend) -> AsyncIterator[httpx2.AsyncClient]:
    fetcher = Fetcher(LIMITS)
    service = create_chat_service(
        tiny,
        model_name="tiny",
        backend=backend,
        fetcher=fetcher,
        chat_limits=ChatLimits(),
        media_limits=LIMITS,
    )

    async def health() -> dict[str, Any]:
        return {"status": "ok"}

    async def no_metrics() -> str:
        return ""

    settings = ApiSettings(system_fingerprint=system_fingerprint(tiny))
    app = create_api(service, health=health, metrics=no_metrics, recorder=MemoryRecorder(), settings=settings)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://test", timeout=60
    ) as client:
        yield client
    await fetcher.close()


async def post(client: httpx2.AsyncClient, content: Any, **fields: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "tiny", "max_tokens": 4, "temperature": 0, **fields}
    body["messages"] = [{"role": "user", "content": content}]
    response = await client.post("/v1/chat/completions", json=body)
    return response.status_code, response.json()


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def test_an_answer_about_a_picture(client):
    status, answer = await post(client, [image(data_url(picture())), {"type": "text", "text": "hi"}])
    assert status == 200
    assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 12
    assert answer["system_fingerprint"].startswith("fp_")
    assert {"encoder_preprocess_ms", "encode_ms", "prefill_ms"} <= set(answer["timings"])


async def test_two_pictures_are_told_apart_by_their_place(client):
    one, two = image(data_url(picture())), image(data_url(picture(64, 192, "PNG")))
    seen = []
    for order in ([one, two], [two, one], [one, two]):
        status, answer = await post(client, order, max_tokens=1, logprobs=True)
        assert status == 200
        seen.append(answer["choices"][0]["logprobs"]["content"][0]["logprob"])
    # Which pictures share a forward pass depends on when they arrive, and that moves the last bits.
    assert seen[2] == pytest.approx(seen[0], abs=1e-4)
    assert seen[1] != pytest.approx(seen[0], abs=1e-3)


def clip(modality: str, name: str) -> dict[str, Any]:
    return {"type": f"{modality}_url", f"{modality}_url": {"url": data_url((CLIPS / name).read_bytes(), "")}}


VIDEO, SOUND = clip("video", "traffic_light.mp4"), clip("audio", "phone_number.wav")
QUESTION = {"type": "text", "text": "hi"}


def media_tokens(answer: dict[str, Any]) -> dict[str, int]:
    details = answer["usage"]["prompt_tokens_details"]
    return {
        name: details[f"{name}_tokens"] for name in ("image", "video", "audio") if details[f"{name}_tokens"]
    }


async def test_an_answer_about_a_video_with_sound_and_a_picture(client):
    status, answer = await post(client, [VIDEO, image(data_url(picture())), QUESTION])
    assert status == 200
    # 8 s at 1 fps are 4 units of 256 x 320 pixels, which are 8 x 10 tokens; the sound is 8 s at 6.25 tokens.
    assert media_tokens(answer) == {"image": 12, "video": 320, "audio": 51}
    assert {"encoder_decode_ms", "encoder_encode_ms"} <= set(answer["timings"])
    assert "media_notes" not in answer


async def test_an_answer_about_a_sound_in_both_spellings(client):
    data = SOUND["audio_url"]["url"].partition(",")[2]
    inline = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    answers = [await post(client, [part, QUESTION], max_tokens=1, logprobs=True) for part in (SOUND, inline)]
    assert [status for status, _ in answers] == [200, 200]
    assert [media_tokens(answer) for _, answer in answers] == [{"audio": 11}] * 2
    assert answers[0][1]["choices"] == answers[1][1]["choices"]


@pytest.mark.parametrize(
    ("wishes", "tokens"),
    [
        ({"use_audio_in_video": False}, {"video": 320}),
        ({"fps": 2, "use_audio_in_video": False}, {"video": 640}),
        ({"max_frames": 4, "use_audio_in_video": False}, {"video": 160}),
        ({"max_pixels": 160 * 128, "use_audio_in_video": False}, {"video": 60}),
        ({"start_s": 4, "end_s": 6, "min_frames": 2}, {"video": 80, "audio": 13}),
    ],
    ids=str,
)
async def test_sampling_wishes_change_what_the_model_sees(client, wishes, tokens):
    status, answer = await post(client, [VIDEO, QUESTION], max_tokens=1, mm_processor_kwargs=wishes)
    assert status == 200, answer
    assert media_tokens(answer) == tokens


@pytest.mark.parametrize(
    ("part", "fields", "status", "param"),
    [
        (VIDEO, {"mm_processor_kwargs": {"max_pixels": 5}}, 400, "mm_processor_kwargs.max_pixels"),
        (VIDEO, {"mm_processor_kwargs": {"max_frames": 3601}}, 413, "mm_processor_kwargs.max_frames"),
        (clip("video", "phone_number.wav"), {}, 415, "messages.0.content.0"),
        (clip("audio", "../pictures/shapes.webp"), {}, 415, "messages.0.content.0"),
        (
            {"type": "input_audio", "input_audio": {"data": "@@", "format": "mp3"}},
            {},
            400,
            "messages.0.content.0",
        ),
        (
            {"type": "audio_url", "audio_url": {"url": data_url(b"RIFF", "audio/wav")}},
            {},
            415,
            "messages.0.content.0",
        ),
        (
            {"type": "audio_url", "audio_url": {"url": data_url(b"RIFF", "text/html")}},
            {},
            415,
            "messages.0.content.0",
        ),
    ],
    ids=["max_pixels", "max_frames", "sound as video", "picture as sound", "base64", "damaged", "type"],
)
async def test_bad_media_name_what_is_wrong(client, part, fields, status, param):
    found, answer = await post(client, [part, QUESTION], **fields)
    assert (found, answer["error"]["param"]) == (status, param), answer
    assert len(answer["error"]["message"]) > 10


async def answers(client: httpx2.AsyncClient, part: dict[str, Any], **fields: Any) -> tuple[Any, set[str]]:
    """What is said about the part, and what its encoder did."""
    status, answer = await post(client, [part, QUESTION], max_tokens=1, logprobs=True, **fields)
    assert status == 200, answer
    return answer["choices"], {name for name in answer["timings"] if name.startswith("encoder_")}


async def test_what_was_encoded_is_not_encoded_again(client):
    part = image(data_url(picture(shade=7)))
    first, again = await answers(client, part), await answers(client, part)
    smaller = await answers(client, part, mm_processor_kwargs={"max_pixels": 4096})
    assert again == (first[0], {"encoder_cache_ms"})
    assert {"encoder_preprocess_ms", "encoder_batch_ms"} <= first[1] & smaller[1]


async def test_a_picture_that_is_there_twice_is_encoded_once(client):
    part = image(data_url(picture(shade=8)))
    status, answer = await post(client, [part, part, QUESTION])
    assert status == 200
    assert media_tokens(answer) == {"image": 24}
    # One of them has waited for the other.
    assert {"encoder_cache_ms", "encoder_batch_ms"} <= set(answer["timings"])


@pytest.mark.parametrize(
    "part", [image(data_url(picture(shade=9))), VIDEO, SOUND], ids=["image", "video", "audio"]
)
async def test_media_under_a_uuid_may_be_left_out(client, part):
    kind = part["type"]
    first = await answers(client, {**part, "uuid": "x"})
    for bare in (
        {"type": kind, "uuid": "x"},
        {"type": kind, kind: {"url": "http://10.0.0.1/x"}, "uuid": "x"},
    ):
        assert await answers(client, bare) == (first[0], {"encoder_cache_ms"})


async def test_an_evicted_item_is_asked_for_or_encoded_again(client):
    part = {**image(data_url(picture(shade=10))), "uuid": "y"}
    bare = {"type": "image_url", "uuid": "y"}
    first = await answers(client, part)
    for wishes in ({"use_audio_in_video": False}, {"use_audio_in_video": False, "end_s": 7.9}):
        await answers(client, VIDEO, mm_processor_kwargs=wishes)
    status, answer = await post(client, [bare, QUESTION])
    assert (status, answer["error"]["code"]) == (404, "media_not_cached")
    again = await answers(client, part)
    assert again[0] == first[0]
    assert "encoder_batch_ms" in again[1]
    assert (await answers(client, bare))[0] == first[0]


async def test_a_truncated_video_is_answered_with_a_note(client):
    data = (CLIPS / "traffic_light.mp4").read_bytes()
    cut = {"type": "video_url", "video_url": {"url": data_url(data[: len(data) // 2], "video/mp4")}}
    status, answer = await post(client, [cut, QUESTION])
    assert status == 200, answer
    assert media_tokens(answer)["video"] == 320
    (note, *_) = answer["media_notes"]
    assert (note["param"], note["modality"]) == ("messages.0.content.0", "video")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:80/x.jpg",
        "http://localhost/x.jpg",
        "http://10.0.0.1/x.jpg",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/x.jpg",
        "http://[::ffff:127.0.0.1]/x.jpg",
        "file:///etc/passwd",
    ],
)
async def test_private_places_are_forbidden(client, url):
    status, answer = await post(client, [image(url)])
    assert status == 400
    assert answer["error"]["code"] in ("media_forbidden", "invalid_media")
    assert answer["error"]["param"] == "messages.0.content.0"


@pytest.mark.parametrize("host", ["2130706433", "127.1", "017700000001", "0", "0x7f000001"])
async def test_other_spellings_of_loopback_lead_nowhere(client, host):
    with web_server() as web:
        port = web.rpartition(":")[2]
        status, answer = await post(client, [image(f"http://{host}:{port}/ok.jpg")])
    assert status in (400, 424)
    assert answer["error"]["param"] == "messages.0.content.0"


async def test_greedy_answers_repeat_and_seeds_matter(client):
    greedy = [await post(client, "tell me", max_tokens=12) for _ in range(2)]
    assert greedy[0][1]["choices"] == greedy[1][1]["choices"]
    drawn = [
        (await post(client, "tell me", max_tokens=24, temperature=2, seed=seed))[1]["choices"]
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


async def test_a_conversation_the_context_cannot_hold_is_400(client, backend):
    status, answer = await post(client, "word " * 40_000)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
    limit = (await backend.model_info()).max_context
    status, answer = await post(client, "hi", max_tokens=limit)
    assert (status, answer["error"]["param"]) == (400, "max_tokens")
    assert str(limit) in answer["error"]["message"]


async def test_without_max_tokens_a_long_prompt_still_leaves_room(client):
    status, answer = await post(client, "hi", max_tokens=None, stop=["e", "a", " "])
    assert status == 200
    assert answer["choices"][0]["finish_reason"] in ("stop", "length")


async def test_nothing_is_left_in_the_engine(client, backend):
    await post(client, "hi")
    await wait_until(lambda: backend.stats().num_running + backend.stats().num_waiting == 0)
    assert backend.stats().kv_bytes_used == 0
