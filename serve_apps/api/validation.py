"""From the bytes of a body to a checked `ChatCompletionRequest`, or an `ApiError` that says what to change.

Messages are written here, not by pydantic: they show what came, what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from mm_pipeline.errors import InvalidMediaError
from serve_apps.api import schemas
from serve_apps.api.errors import OPTIONS_FIELD, ApiError, bad_request
from serve_apps.api.schemas import ChatCompletionRequest, MediaPart, MmProcessorKwargs, TextPart

_MAX_SHOWN_CHARS = 80


def parse_chat_request(body: bytes) -> ChatCompletionRequest:
    """Parse and check a request body.

    Raises ApiError 400 for malformed JSON, unknown or unsupported fields and values out of range.
    """
    try:
        raw = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(
            f"The body is not valid JSON ({_json_problem(error)}). Send one JSON object.", code="invalid_json"
        ) from None
    if not isinstance(raw, dict):
        raise bad_request(f"The body must be a JSON object, but {_shown(raw)} came.", code="invalid_json")
    return check_chat_request(raw)


def check_chat_request(raw: Mapping[str, Any]) -> ChatCompletionRequest:
    """Check an already parsed body; raises ApiError 400."""
    fields = {name: value for name, value in raw.items() if value is not None}
    _refuse_unsupported(fields)
    fields = {
        name: value
        for name, value in fields.items()
        if name not in schemas.IGNORED_FIELDS and name not in schemas.UNSUPPORTED_FIELDS
    }
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    if isinstance(fields.get(OPTIONS_FIELD), dict):
        fields[OPTIONS_FIELD] = {
            name: value for name, value in fields[OPTIONS_FIELD].items() if value is not None
        }
    if isinstance(fields.get("messages"), list):
        fields["messages"] = [
            _without_empty_fields(message) if isinstance(message, dict) else message
            for message in fields["messages"]
        ]
        _refuse_unsupported_parts(fields["messages"])
    try:
        request = ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        raise _first_problem(error) from None
    _check_combinations(request)
    return request


def text_chars(request: ChatCompletionRequest) -> int:
    """The number of characters of text in all messages."""
    total = 0
    for message in request.messages:
        if isinstance(message.content, str):
            total += len(message.content)
        else:
            total += sum(len(part.text) for part in message.content if isinstance(part, TextPart))
    return total


def media_parts(request: ChatCompletionRequest) -> list[tuple[str, MediaPart]]:
    """All media parts in order of appearance, each with its param such as `messages.0.content.1`."""
    return [
        (f"messages.{i}.content.{j}", part)
        for i, message in enumerate(request.messages)
        if not isinstance(message.content, str)
        for j, part in enumerate(message.content)
        if not isinstance(part, TextPart)
    ]


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    for name, advice in schemas.UNSUPPORTED_FIELDS.items():
        if name in fields and not any(
            _same(fields[name], value) for value in schemas.HARMLESS_VALUES.get(name, ())
        ):
            raise bad_request(
                f"'{name}' was {_shown(fields[name])}: {advice}.", param=name, code="unsupported_parameter"
            )


def _same(value: Any, other: Any) -> bool:
    # True == 1 in Python, but not in JSON.
    return type(value) is type(other) and bool(value == other)


def _without_empty_fields(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in message.items()
        if not (name in schemas.EMPTY_MESSAGE_FIELDS and value in (None, [], {}, ""))
    }


def _refuse_unsupported_parts(messages: list[Any]) -> None:
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            continue
        if message.get("role") in ("tool", "function"):
            raise bad_request(
                f"Message {i} has the role {_shown(message['role'])}: tool calls are not supported. "
                "Use system, developer, user or assistant.",
                param=f"messages.{i}.role",
                code="unsupported_value",
            )
        content = message.get("content")
        if not isinstance(content, list):
            continue
        for j, part in enumerate(content):
            kind = part.get("type") if isinstance(part, dict) else None
            if isinstance(kind, str) and kind in schemas.UNSUPPORTED_PARTS:
                raise bad_request(
                    f"Part {j} of message {i} has the type '{kind}': {schemas.UNSUPPORTED_PARTS[kind]}. "
                    f"Use {_one_of(schemas.PART_TYPES)}.",
                    param=f"messages.{i}.content.{j}",
                    code="unsupported_value",
                )


def _check_combinations(request: ChatCompletionRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise bad_request(
            "'stream_options' came without 'stream': true. Leave it out or stream.", param="stream_options"
        )
    if request.top_logprobs and not request.logprobs:
        raise bad_request(
            f"'top_logprobs' was {request.top_logprobs} without 'logprobs': true. Set both or neither.",
            param="top_logprobs",
        )
    both = (request.max_tokens, request.max_completion_tokens)
    if None not in both and both[0] != both[1]:
        raise bad_request(
            f"'max_tokens' was {both[0]} and 'max_completion_tokens' {both[1]}. Send one of them.",
            param="max_tokens",
        )
    for param, part in media_parts(request):
        if part.url is None and part.uuid is None:
            raise _no_media(param, part)
    try:
        _ = request.media_options
    except InvalidMediaError as error:
        raise bad_request(
            f"In '{OPTIONS_FIELD}', {error.message}.",
            param=f"{OPTIONS_FIELD}.{error.param}",
            code="invalid_value",
        ) from None


def _no_media(param: str, part: MediaPart) -> ApiError:
    name = f"{param}.{part.type}"
    if getattr(part, part.type) is not None:
        name += ".data" if part.type == "input_audio" else ".url"
    return bad_request(
        f"'{name}' is missing. Add it, or the 'uuid' with which the media were sent before.",
        param=name,
        code="missing_required_parameter",
    )


def _json_problem(error: ValueError) -> str:
    text = str(error)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."


def _first_problem(error: ValidationError) -> ApiError:
    detail = error.errors(include_url=False)[0]
    names = [str(item) for item in detail["loc"] if not str(item).startswith("<")]
    param = ".".join(names)
    explain = _EXPLANATIONS.get(detail["type"])
    if explain is None:
        problem = f"'{param}' was {_shown(detail['input'])}, which is not valid here."
    else:
        problem = explain(param, detail)
    return bad_request(problem, param=param, code=_CODES.get(detail["type"], "invalid_value"))


def _shown(value: Any) -> str:
    """A value as the client wrote it, shortened; containers only by kind and size."""
    if isinstance(value, str):
        cut = value if len(value) <= _MAX_SHOWN_CHARS else value[:_MAX_SHOWN_CHARS] + "..."
        return f"'{cut}'"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)[:_MAX_SHOWN_CHARS]


def _one_of(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}"


def _unknown_field(param: str, detail: ErrorDetails) -> str:
    if param.startswith(f"{OPTIONS_FIELD}."):
        return f"'{param}' is not a known field. Use {_one_of(MmProcessorKwargs.model_fields)}."
    return f"'{param}' is not a known field. Check its name or leave it out."


def _wrong_type(wanted: str) -> Callable[[str, ErrorDetails], str]:
    return lambda param, detail: f"'{param}' must be {wanted}, but {_shown(detail['input'])} came."


def _bound(words: str, key: str) -> Callable[[str, ErrorDetails], str]:
    return lambda param, detail: (
        f"'{param}' must be {words} {detail['ctx'][key]}, but {_shown(detail['input'])} came."
    )


def _content_kind(param: str, detail: ErrorDetails) -> str:
    if param.endswith("content"):
        return f"'{param}' must be a string or a list of parts, but {_shown(detail['input'])} came."
    kind = detail["input"].get("type") if isinstance(detail["input"], dict) else None
    came = "a part without a type" if kind is None else f"the type {_shown(kind)}"
    return f"'{param}' must be a part of type {_one_of(schemas.PART_TYPES)}, but {came} came."


_EXPLANATIONS: dict[str, Callable[[str, ErrorDetails], str]] = {
    "missing": lambda param, detail: f"'{param}' is missing. Add it.",
    "extra_forbidden": _unknown_field,
    "string_type": _wrong_type("a string"),
    "int_type": _wrong_type("a whole number"),
    "int_from_float": _wrong_type("a whole number"),
    "float_type": _wrong_type("a number"),
    "finite_number": _wrong_type("a finite number"),
    "bool_type": _wrong_type("true or false"),
    "list_type": _wrong_type("a list"),
    "model_type": _wrong_type("an object"),
    "model_attributes_type": _wrong_type("an object"),
    "dict_type": _wrong_type("an object"),
    "union_tag_not_found": _content_kind,
    "union_tag_invalid": _content_kind,
    "greater_than": _bound("greater than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
    "string_too_short": lambda param, detail: f"'{param}' must not be empty.",
    "string_too_long": lambda param, detail: (
        f"'{param}' may have {detail['ctx']['max_length']} characters, but {len(detail['input'])} came."
    ),
    "string_pattern_mismatch": lambda param, detail: (
        f"'{param}' may have ASCII letters, digits and punctuation, but {_shown(detail['input'])} came."
    ),
    "too_short": lambda param, detail: f"'{param}' must not be empty.",
    "too_long": lambda param, detail: (
        f"'{param}' may have {detail['ctx']['max_length']} entries, "
        f"but {detail['ctx']['actual_length']} came."
    ),
    "literal_error": lambda param, detail: (
        f"'{param}' must be one of {detail['ctx']['expected']}, but {_shown(detail['input'])} came."
    ),
}

_CODES = {"missing": "missing_required_parameter", "extra_forbidden": "unknown_parameter"}
