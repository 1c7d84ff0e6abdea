"""chat.completion and chat.completion.chunk objects, built from the chat service's events.

Plain dicts ready for JSON. Does not know how they are sent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from serve_apps.chat.events import ChatEvent, Delta, Finished, LogprobEntry, MediaNote, TokenText, Usage


@dataclass(frozen=True, kw_only=True)
class AnswerHeader:
    """The fields every object of one answer shares."""

    model: str
    system_fingerprint: str
    request_id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """The shared fields of an object of this kind."""
        return {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


def chat_completion(header: AnswerHeader, events: Iterable[ChatEvent], *, logprobs: bool) -> dict[str, Any]:
    """The whole answer as one chat.completion object. The last event must be `Finished`."""
    texts: list[str] = []
    entries: list[LogprobEntry] = []
    end: Finished | None = None
    for event in events:
        if isinstance(event, Delta):
            texts.append(event.text)
            entries.extend(event.logprobs)
        elif isinstance(event, Finished):
            end = event
    assert end is not None, "the chat service ends every answer with Finished"
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(texts), "refusal": None},
        "logprobs": logprobs_object(entries) if logprobs else None,
        "finish_reason": end.finish_reason,
    }
    return {
        **header.fields("chat.completion"),
        "choices": [choice],
        "usage": usage_object(end.usage),
        "timings": timings_object(end.timings),
        **notes_fields(end.notes),
    }


class ChunkBuilder:
    """Turns the events of one answer into chat.completion.chunk objects."""

    def __init__(self, header: AnswerHeader, *, logprobs: bool, include_usage: bool) -> None:
        self._header = header
        self._logprobs = logprobs
        self._include_usage = include_usage

    def first(self) -> dict[str, Any]:
        """The chunk that opens the answer."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def chunks(self, event: ChatEvent) -> list[dict[str, Any]]:
        """The chunks this event becomes."""
        if isinstance(event, Delta):
            if not event.text and not event.logprobs:
                return []
            return [self._chunk({"content": event.text}, logprobs=event.logprobs)]
        if isinstance(event, Finished):
            last = self._chunk({}, finish_reason=event.finish_reason)
            last["timings"] = timings_object(event.timings)
            last |= notes_fields(event.notes)
            if not self._include_usage:
                return [last]
            usage = self._header.fields("chat.completion.chunk")
            usage |= {"choices": [], "usage": usage_object(event.usage), "timings": last["timings"]}
            return [last, usage]
        return []

    def _chunk(
        self,
        delta: dict[str, Any],
        *,
        logprobs: tuple[LogprobEntry, ...] = (),
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        chunk = self._header.fields("chat.completion.chunk")
        chunk["choices"] = [
            {
                "index": 0,
                "delta": delta,
                "logprobs": logprobs_object(logprobs) if self._logprobs and logprobs else None,
                "finish_reason": finish_reason,
            }
        ]
        if self._include_usage:
            chunk["usage"] = None
        return chunk


def logprobs_object(entries: Iterable[LogprobEntry]) -> dict[str, Any]:
    """OpenAI's logprobs object."""
    return {
        "content": [
            {
                **_token_fields(entry.token, entry.logprob),
                "top_logprobs": [_token_fields(token, logprob) for token, logprob in entry.top],
            }
            for entry in entries
        ],
        "refusal": None,
    }


def usage_object(usage: Usage) -> dict[str, Any]:
    """OpenAI's usage object; `image_tokens` and `video_tokens` are this server's additions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "image_tokens": usage.image_tokens,
            "video_tokens": usage.video_tokens,
            "audio_tokens": usage.audio_tokens,
        },
    }


def notes_fields(notes: Iterable[MediaNote]) -> dict[str, Any]:
    """`media_notes`, this server's addition, where there is something to say; else nothing."""
    found = [{"param": note.param, "modality": note.modality, "note": note.note} for note in notes]
    return {"media_notes": found} if found else {}


def timings_object(timings: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds per stage, rounded to the microsecond."""
    return {name: round(value, 3) for name, value in timings.items()}


def server_timing(timings: Mapping[str, float]) -> dict[str, str]:
    """The Server-Timing header (W3C) with the same stages, durations in milliseconds; nothing without stages."""
    stages = [f"{name.removesuffix('_ms')};dur={value:.3f}" for name, value in timings.items()]
    return {"Server-Timing": ", ".join(stages)} if stages else {}


def model_list(model: str, created: int) -> dict[str, Any]:
    """The body of GET /v1/models."""
    return {"object": "list", "data": [model_object(model, created)]}


def model_object(model: str, created: int) -> dict[str, Any]:
    """One entry of the list of models."""
    return {"id": model, "object": "model", "created": created, "owned_by": "mm-pipeline"}


def _token_fields(token: TokenText, logprob: float) -> dict[str, Any]:
    # JSON has no infinity; OpenAI shows -9999.0 for a token that could not have been chosen.
    return {"token": token.text, "bytes": list(token.data), "logprob": max(logprob, -9999.0)}
