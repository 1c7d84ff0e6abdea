"""The loop that every stage runs: optimiser, schedule, progress, log, saving and going on. Knows no model.

Several processes may train one stage together: each makes its share of a batch, and gradients are averaged.
"""

from __future__ import annotations

import gc
import json
import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed
from torch import nn
from tqdm import tqdm

from samples.demo_training.muon import Muon
from samples.demo_training.processes import WHOLE, Shard, agree

SAVE_EVERY_S = 120.0
LOG_EVERY = 25
_WARMUP = 100


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Peak learning rates. adamw: of embeddings, heads, biases and gains. muon: of the matrices between them, whose
    weights decay by weight_decay times that rate each step. shares: of these rates, for modules with these names.
    """

    adamw: float
    muon: float
    weight_decay: float = 0.01
    shares: Mapping[str, float] = field(default_factory=dict)


class Stage(Protocol):
    """name: of its files. steps: in all. module: what is trained and saved; frozen parameters need no gradient."""

    name: str
    steps: int
    rates: Rates

    @property
    def module(self) -> nn.Module: ...

    def batches(self, first: int, shard: Shard) -> Iterator[Any]:
        """Shards of the batches from step `first` on; the same step always gives the same batch."""
        ...

    def loss(self, batch: Any) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss to minimise, and numbers to log."""
        ...

    def after_step(self) -> None:
        """Called after each optimiser step."""
        ...


@dataclass(frozen=True, kw_only=True)
class Run:
    """folder: where states and the log are kept. deadline: on `time.monotonic()`, when to save and stop.

    shard: this process's. With more than one, torch.distributed's default group holds as many.
    bf16: whether matrices are multiplied in bfloat16; weights, sums over layers and losses stay in float32.
    """

    folder: Path
    deadline: float = math.inf
    shard: Shard = WHOLE
    bf16: bool = False

    def state_path(self, name: str) -> Path:
        return self.folder / f"{name}.pt"

    def log(self, entry: Mapping[str, Any]) -> None:
        with (self.folder / "log.jsonl").open("a") as file:
            file.write(json.dumps(entry) + "\n")


def train(stage: Stage, run: Run) -> bool:
    """Trains until the stage's last step, the run's deadline or a signal to end; True when the stage is done.

    Whatever ends it, the state is saved. A state from an earlier run is gone on with: weights, optimiser, step and
    seconds. Of several processes the first one shows, logs and saves.
    """
    leads = run.shard.index == 0
    optimisers = _optimisers(stage.module, stage.rates, bf16=run.bf16)
    step, seconds = 0, 0.0
    path = run.state_path(stage.name)
    if path.exists():
        state = torch.load(path, weights_only=True)
        stage.module.load_state_dict(state["module"])
        step, seconds = state["step"], state["seconds"]
        if step >= stage.steps:
            return True
        for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
    # Else the collector looks through all libraries' objects every few steps, a thirtieth of the time.
    gc.freeze()
    begun = saved_at = time.monotonic()

    def save() -> None:
        if not leads:
            return
        temporary = path.with_suffix(".new")
        torch.save(
            {
                "module": stage.module.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in optimisers],
                "step": step,
                "seconds": seconds + time.monotonic() - begun,
            },
            temporary,
        )
        temporary.replace(path)

    averages: dict[str, float] = {}
    with (
        _asked_to_end() as asked,
        tqdm(
            total=stage.steps,
            initial=step,
            desc=stage.name,
            mininterval=5,
            dynamic_ncols=True,
            disable=not leads,
        ) as bar,
    ):
        for batch in stage.batches(step, run.shard):
            for optimiser in optimisers:
                for group in optimiser.param_groups:
                    group["lr"] = group["peak_lr"] * schedule(step, stage.steps)
            with torch.autocast("cpu", torch.bfloat16, enabled=run.bf16):
                loss, numbers = stage.loss(batch)
            loss.backward()
            ends = time.monotonic() >= run.deadline or asked.is_set()
            if run.shard.count > 1:
                ends = agree(stage.module, ends)
            torch.nn.utils.clip_grad_norm_(stage.module.parameters(), 1.0)
            for optimiser in optimisers:
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            stage.after_step()
            step += 1
            for name, value in {"loss": loss.item(), **numbers}.items():
                averages[name] = 0.95 * averages.get(name, value) + 0.05 * value
            bar.update()
            if leads and (step % LOG_EVERY == 0 or step == stage.steps):
                shown = {name: round(value, 4) for name, value in averages.items()}
                bar.set_postfix(shown, refresh=False)
                spent = round(seconds + time.monotonic() - begun, 1)
                run.log({"stage": stage.name, "step": step, "seconds": spent, **shown})
            if step >= stage.steps or ends:
                break
            if time.monotonic() - saved_at >= SAVE_EVERY_S:
                save()
                saved_at = time.monotonic()
    save()
    if run.shard.count > 1:
        # What was saved is there before another stage is built on it.
        torch.distributed.barrier()
    return step >= stage.steps


@contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    """Set once the process is told to end, by Ctrl-C or by `kill`; the step under way is finished first."""
    asked = threading.Event()
    before = {
        number: signal.signal(number, lambda _number, _frame: asked.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, then a cosine down to a fiftieth."""
    warmup = min(_WARMUP, steps // 10 + 1)
    if step < warmup:
        return (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return 0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2


def _optimisers(module: nn.Module, rates: Rates, *, bf16: bool) -> list[torch.optim.Optimizer]:
    """Muon for matrices inside the network, AdamW for embeddings, heads, biases and gains."""
    matrices: dict[float, list[nn.Parameter]] = defaultdict(list)
    others: dict[float, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            inside = parameter.dim() == 2 and not any(
                part in name for part in ("embed", "head", "gate.weight")
            )
            share = next((share for part, share in rates.shares.items() if name.startswith(f"{part}.")), 1.0)
            (matrices if inside else others)[share].append(parameter)
    optimisers: list[torch.optim.Optimizer] = []
    if matrices:
        groups = [{"params": found, "lr": share * rates.muon} for share, found in matrices.items()]
        decay = rates.weight_decay
        optimisers.append(Muon(groups, lr=rates.muon, momentum=0.95, weight_decay=decay, bf16=bf16))
    groups = [{"params": found, "lr": share * rates.adamw} for share, found in others.items()]
    optimisers.append(torch.optim.AdamW(groups, lr=rates.adamw, betas=(0.9, 0.98), weight_decay=0.0))
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak_lr"] = group["lr"]
    return optimisers


def prefetched(make: Callable[[int], Any], first: int, steps: int) -> Iterator[Any]:
    """make(step) for each step from `first`, computed ahead in another process."""
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        _Steps(make, first, steps),
        batch_size=None,
        num_workers=1,
        prefetch_factor=4,
        # In a process that was spawned the default is to spawn, and `make` cannot be pickled.
        multiprocessing_context="fork",
        worker_init_fn=_leave_interrupts_to_main,
    )
    return iter(loader)


def _leave_interrupts_to_main(_worker: int) -> None:
    """Ctrl-C reaches every process of a terminal; the step under way still needs its batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Steps(torch.utils.data.Dataset[Any]):
    def __init__(self, make: Callable[[int], Any], first: int, steps: int) -> None:
        self._make, self._first, self._steps = make, first, steps

    def __len__(self) -> int:
        return self._steps - self._first

    def __getitem__(self, index: int) -> Any:
        torch.set_num_threads(1)
        return self._make(self._first + index)
