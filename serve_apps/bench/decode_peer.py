"""transformers' MiMo decoder in a process of its own, one call at a time. Knows nothing of our engine."""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

PEER_DTYPES: Final = ("bfloat16", "float32")
BATCH = 16
_EXPERT_IMPLEMENTATIONS = ("eager", "grouped_mm")
_PROBE_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Seconds of one prefill; tokens per second of one sequence, and of sixteen together."""

    prefill_s: float
    decode_tokens_per_s: float
    batch16_tokens_per_s: float


def prompt_ids(num_tokens: int, seed: int) -> tuple[int, ...]:
    """Random token ids below 256."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 256, (num_tokens,), generator=generator).tolist())


class Peer:
    """Handle on the process. Every call waits for its end."""

    def __init__(
        self, process: ProcessPoolExecutor, dtype: str, implementation: str, num_tokens: int
    ) -> None:
        self.label = f"{dtype}, {implementation} experts"
        self.prefill_s = 0.0
        self._process = process
        self._num_tokens = num_tokens
        self._single: list[float] = []
        self._together: list[float] = []

    def decode_single(self) -> None:
        """Decodes one sequence after the long prompt."""
        self._single.append(self._process.submit(_decode, "single", self._num_tokens).result())

    def decode_batch(self) -> None:
        """Decodes sixteen sequences; each step yields sixteen tokens, so a quarter of the steps will do."""
        steps = max(4, self._num_tokens // 4)
        self._together.append(BATCH * self._process.submit(_decode, "batch", steps).result())

    def speed(self) -> Speed:
        """Medians of what was measured."""
        return Speed(
            prefill_s=self.prefill_s,
            decode_tokens_per_s=statistics.median(self._single),
            batch16_tokens_per_s=statistics.median(self._together),
        )


@contextmanager
def start_peer(folder: Path, dtype: str, args: argparse.Namespace) -> Iterator[Peer]:
    """A peer with its model loaded and both its prompts prefilled; its process ends with the block."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        implementation = min(
            _EXPERT_IMPLEMENTATIONS, key=lambda name: process.submit(_probe, folder, dtype, name).result()
        )
        peer = Peer(process, dtype, implementation, args.tokens)
        prompts = args.prompt_tokens, args.batch_prompt_tokens
        peer.prefill_s = process.submit(_prefill, folder, dtype, implementation, *prompts).result()
        yield peer


# The rest runs in the peer's process. Name of a prompt to the model's last output on it, with its cache.
_outputs: dict[str, Any] = {}
_models: list[Any] = []


def _load(folder: Path, dtype: str, implementation: str) -> Any:
    from transformers import MiMoV2FlashForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model: Any = MiMoV2FlashForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), experts_implementation=implementation
    )
    model.train(False)
    return model


@torch.inference_mode()
def _probe(folder: Path, dtype: str, implementation: str) -> float:
    """Seconds of a short prefill with one of the expert implementations."""
    model = _load(folder, dtype, implementation)
    ids = torch.tensor([prompt_ids(_PROBE_TOKENS, 0)])
    model(ids[:, :8])
    begin = time.perf_counter()
    model(ids)
    return time.perf_counter() - begin


@torch.inference_mode()
def _prefill(folder: Path, dtype: str, implementation: str, num_tokens: int, num_batch_tokens: int) -> float:
    """Seconds of the long prefill. Both prompts are ready to be decoded afterwards.

    The sixteen share a prompt, as a prefill of all at once needs tens of gigabytes at 4,096 tokens each. Their
    first tokens differ, else all would choose the same experts.
    """
    model = _load(folder, dtype, implementation)
    _models.append(model)
    ids = torch.tensor([prompt_ids(num_tokens, 0)])
    model(ids[:, :64])
    begin = time.perf_counter()
    _outputs["single"] = model(ids, use_cache=True, logits_to_keep=1)
    elapsed = time.perf_counter() - begin
    output = model(torch.tensor([prompt_ids(num_batch_tokens, 0)]), use_cache=True, logits_to_keep=1)
    output.cache.batch_repeat_interleave(BATCH)
    firsts = torch.tensor([prompt_ids(BATCH, 1)]).T
    output.logits = torch.nn.functional.one_hot(firsts, output.logits.shape[-1])
    _outputs["batch"] = output
    return elapsed


@torch.inference_mode()
def _decode(name: str, steps: int) -> float:
    """Greedy steps per second on the peer's own cache, going on where the last call ended."""
    model, output = _models[0], _outputs[name]
    begin = time.perf_counter()
    for _ in range(steps):
        token = output.logits[:, -1:].argmax(-1)
        output = model(token, cache=output.cache, use_cache=True, logits_to_keep=1)
    elapsed = time.perf_counter() - begin
    _outputs[name] = output
    return steps / elapsed
