"""Questions of every kind, good and malformed, and a client that asks them as one would that heeds 503."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.e2e.media import CLIPS, data_url, picture

_VIDEO = data_url((CLIPS / "traffic_light.mp4").read_bytes(), "video/mp4")
_SOUND = base64.b64encode((CLIPS / "phone_number.wav").read_bytes()).decode()
_NOISE = b"this is no picture, no video and no sound" * 9


@dataclass(frozen=True, kw_only=True)
class Question:
    """wishes: `mm_processor_kwargs`. Two questions of one kind differ in their media or in how these are read."""

    name: str
    media: dict[str, Any] | None = field(default=None, repr=False)
    wishes: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """As POST /v1/chat/completions takes it."""
        parts: list[dict[str, Any]] = [] if self.media is None else [self.media]
        text = {"type": "text", "text": f"What is it, {self.name}?"}
        return {
            "model": "tiny",
            "messages": [{"role": "user", "content": [*parts, text]}],
            "max_tokens": 4,
            "temperature": 0,
            "mm_processor_kwargs": self.wishes,
        }


def _url(kind: str, url: str) -> dict[str, Any]:
    return {"type": kind, kind: {"url": url}}


def about_picture(number: int, side: int = 96) -> Question:
    data = picture(side, side * 2 // 3, shade=number)
    return Question(name=f"picture {number}", media=_url("image_url", data_url(data)))


def about_video(number: int) -> Question:
    wishes = {"end_s": 1.0 + number / 10, "max_pixels": 16_384, "fps": 2}
    return Question(name=f"video {number}", media=_url("video_url", _VIDEO), wishes=wishes)


def about_sound(number: int) -> Question:
    media = {"type": "input_audio", "input_audio": {"data": _SOUND, "format": "wav"}}
    return Question(name=f"sound {number}", media=media, wishes={"end_s": 0.5 + number / 20})


def about_nothing(number: int) -> Question:
    return Question(name=f"text {number}")


MALFORMED = (
    Question(name="no picture", media=_url("image_url", data_url(_NOISE))),
    Question(name="no video", media=_url("video_url", data_url(_NOISE, "video/mp4"))),
    Question(name="no sound", media=_url("audio_url", data_url(_NOISE, "audio/wav"))),
)
"""Each is refused with status 415."""


def ask(client: openai.OpenAI, question: Question, timeout_s: float = 60.0) -> str:
    """The answer, or the status that refuses the question. After a 503 with Retry-After it is asked again, five
    times as long as one request may take. Raises AssertionError where a request takes longer than its deadline.
    """
    give_up = time.monotonic() + 5 * timeout_s
    body = question.body()
    wishes = body.pop("mm_processor_kwargs")
    while True:
        started = time.monotonic()
        try:
            answer = client.chat.completions.create(
                **body, extra_body={"mm_processor_kwargs": wishes, "timeout_s": timeout_s}
            )
            return repr(answer.choices[0].message.content)
        except openai.APIStatusError as error:
            may_ask_again = error.status_code == 503 and "Retry-After" in error.response.headers
            if not may_ask_again or time.monotonic() > give_up:
                return str(error.status_code)
            time.sleep(0.2)
        finally:
            assert time.monotonic() - started < timeout_s + 5.0, question


def ask_all(client: openai.OpenAI, questions: Sequence[Question], num_clients: int = 8) -> list[str]:
    """Answers in order."""
    with ThreadPoolExecutor(num_clients) as pool:
        return list(pool.map(lambda question: ask(client, question), questions))
