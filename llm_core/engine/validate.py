"""Checks a request before it queues, so that the engine thread meets only requests it can run."""

from __future__ import annotations

from llm_core.core import GenerateRequest
from llm_core.errors import ContextTooLongError, RequestError


def check_request(request: GenerateRequest, *, vocab_size: int, hidden_size: int, max_context: int) -> None:
    """Raises RequestError (ContextTooLongError for lengths) when the request cannot be run."""
    num_prompt, max_tokens = len(request.token_ids), request.sampling.max_tokens
    if not num_prompt:
        raise RequestError("the prompt is empty; it needs at least one token", param="messages")
    if num_prompt >= max_context:
        raise ContextTooLongError(
            f"the prompt has {num_prompt} tokens and this model takes {max_context - 1} with at least one token of "
            "answer; shorten the text, or send fewer or smaller media",
            param="messages",
        )
    if num_prompt + max_tokens > max_context:
        raise ContextTooLongError(
            f"the prompt's {num_prompt} tokens and max_tokens {max_tokens} make {num_prompt + max_tokens}; this "
            f"model takes {max_context}: lower max_tokens to {max_context - num_prompt} or shorten the prompt",
            param="max_tokens",
        )
    _check_spans(request, hidden_size)
    spans = iter(request.spans)
    span = next(spans, None)
    for position, token in enumerate(request.token_ids):
        while span is not None and position >= span.start + span.length:
            span = next(spans, None)
        is_media = span is not None and position >= span.start
        if not is_media and not 0 <= token < vocab_size:
            raise RequestError(
                f"token {token} at position {position} is outside the vocabulary of {vocab_size}",
                param="messages",
            )


def _check_spans(request: GenerateRequest, hidden_size: int) -> None:
    end = 0
    for span in request.spans:
        if span.length < 1 or span.start < end or span.start + span.length > len(request.token_ids):
            raise RequestError(
                f"an embedding span covers [{span.start}, {span.start + span.length}) of a prompt of "
                f"{len(request.token_ids)} tokens; spans must be sorted, disjoint and inside the prompt",
                param="messages",
            )
        if tuple(span.embeddings.shape) != (span.length, hidden_size):
            raise RequestError(
                f"an embedding span of {span.length} tokens carries a tensor of shape "
                f"{tuple(span.embeddings.shape)}; this model needs ({span.length}, {hidden_size})",
                param="messages",
            )
        end = span.start + span.length
