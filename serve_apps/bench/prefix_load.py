"""How much of the time that KV takes to come back from host memory is hidden behind the layers that compute.

The model is a narrow one of MiMo-V2.5's depth: 48 layers, every sixth of them full. A conversation whose KV is in
host memory says something more. Its step is timed with the KV on the device already, and with the KV on its way
over a link that needs most of that time. On a CPU host and device are one memory, and the link is a clock.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from llm_core.config import load_config
from llm_core.core import GenerateRequest, SamplingParams
from llm_core.engine.runner import Runner
from llm_core.kv.dual import DualPool
from llm_core.kv.storage import KVStorage
from llm_core.kv.tiers.settings import TierSettings
from llm_core.kv.tiers.tiers import KVTiers
from llm_core.model import HybridDecoder
from llm_core.scheduler import Scheduler, SchedulerSettings, Sequence
from llm_core.weights import decoder_tensors, load_decoder
from serve_apps.checkpoint.initial import initial_tensor
from serve_apps.checkpoint.sizes import FULL_EVERY, text_config

_LAYERS = 48
_CONTEXT, _SAID = 4096, 256
_PAGE = 16
_ROUNDS = 5
# Of the step's own time, which the copy takes.
_COPY_SHARE = 0.8


@dataclass(frozen=True, kw_only=True)
class LoadTimes:
    """Medians in seconds: the step with all KV there, the step that waits for it, and the copy. bytes_per_s: of the
    link."""

    resident_s: float
    loading_s: float
    copy_s: float
    bytes_per_s: float

    @property
    def hidden_share(self) -> float:
        """1 - (loading - resident) / copy, at most 1."""
        return min(1.0, 1 - (self.loading_s - self.resident_s) / self.copy_s)


class _Source:
    """Random tensors by name, made when asked for."""

    def __init__(self, names: dict[str, torch.Size], num_tokens: int) -> None:
        self._shapes, self._num_tokens = names, num_tokens

    def keys(self) -> list[str]:
        return list(self._shapes)

    def get_tensor(self, name: str) -> torch.Tensor:
        return initial_tensor(name, self._shapes[name], torch.float32, seed=0, num_tokens=self._num_tokens)


def _model() -> HybridDecoder:
    raw = text_config("tiny")
    raw |= {
        "num_hidden_layers": _LAYERS,
        "hybrid_layer_pattern": [int(layer % FULL_EVERY != 0) for layer in range(_LAYERS)],
        "moe_layer_freq": [int(layer > 0) for layer in range(_LAYERS)],
    }
    config = load_config(raw)
    shapes = {name: torch.Size(spec.shape) for name, spec in decoder_tensors(config).items()}
    return load_decoder(config, _Source(shapes, config.vocab_size), dtype=torch.float32)


class _Bench:
    """A scheduler and a runner, driven by hand."""

    def __init__(self, model: HybridDecoder, bytes_per_s: float | None) -> None:
        pages = 2 * (_CONTEXT + _SAID) // _PAGE
        self._pool = DualPool(
            num_full_pages=pages,
            num_swa_pages=pages,
            page_size=_PAGE,
            window_keys=model.config.swa.window_keys or 1,
            step_tokens=512,
        )
        storage = KVStorage(
            model.config, num_pages={"full": pages, "swa": pages}, page_size=_PAGE, dtype=torch.float32
        )
        tiers = KVTiers(
            storage, model.cached_layers, TierSettings(host_bytes=1 << 32, bytes_per_s=bytes_per_s)
        )
        self._scheduler = Scheduler(self._pool, SchedulerSettings(), tiers)
        self._runner = Runner(model, storage, self._pool, tiers)

    def evict(self) -> None:
        """Everything goes to host memory."""
        self._scheduler.tree.clear()

    def run(self, token_ids: tuple[int, ...]) -> tuple[float, int, int]:
        """Prefills a prompt and keeps it: seconds of the last step, and what was loaded before it in pages of each
        kind."""
        sampling = SamplingParams(temperature=0, max_tokens=1)
        sequence = Sequence(GenerateRequest(request_id="r", token_ids=token_ids, sampling=sampling))
        self._scheduler.add(sequence)
        spent, kinds = 0.0, []
        while sequence.num_computed < sequence.num_tokens or sequence.kv is None:
            step = self._scheduler.next_step()
            kinds += [load.kind for load in step.loads]
            begun = time.perf_counter()
            self._runner.run(step)
            spent = time.perf_counter() - begun
            self._scheduler.complete(step)
        self._scheduler.remove(sequence)
        return spent, kinds.count("full"), kinds.count("swa")

    def num_bytes(self, full_pages: int, swa_pages: int) -> int:
        storage = self._runner.storage
        return storage.num_bytes("full", full_pages) + storage.num_bytes("swa", swa_pages)


def measure_load() -> LoadTimes:
    """Runs on its own in some 20 s; raises ValueError where nothing was loaded."""
    model = _model()
    generator = torch.Generator().manual_seed(0)
    context = tuple(torch.randint(0, 400, (_CONTEXT,), generator=generator).tolist())

    def says(number: int) -> tuple[int, ...]:
        return (*context, *(1 + (number + index) % 400 for index in range(_SAID)))

    plain = _Bench(model, None)
    plain.run(context)
    resident = statistics.median([plain.run(says(number))[0] for number in range(1 + _ROUNDS)][1:])
    plain.evict()
    _, full, swa = plain.run(says(99))
    if not full:
        raise ValueError("nothing came from host memory")
    copied = plain.num_bytes(full, swa)
    bytes_per_s = copied / (_COPY_SHARE * resident)
    slow = _Bench(model, bytes_per_s)
    slow.run(context)
    there, loading = [], []
    for number in range(_ROUNDS):
        # In turns, so that a machine whose speed drifts is the same for both.
        there.append(slow.run(says(1000 + number))[0])
        slow.evict()
        loading.append(slow.run(says(2000 + number))[0])
    return LoadTimes(
        resident_s=statistics.median(there),
        loading_s=statistics.median(loading),
        copy_s=copied / bytes_per_s,
        bytes_per_s=bytes_per_s,
    )
