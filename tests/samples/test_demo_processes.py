"""Several processes that train one stage together end where one does, and stop together."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
import torch.distributed
from torch.multiprocessing.spawn import spawn

from samples.demo_training.processes import Shard, sum_over_processes
from samples.demo_training.training import Run, train
from tests.samples.test_demo_training import TinyStage


def test_shards_are_the_whole() -> None:
    for count in (1, 2, 3):
        shards = [[item for item in range(10) if item in Shard(index, count)] for index in range(count)]
        assert sorted(item for shard in shards for item in shard) == list(range(10))
        assert max(map(len, shards)) - min(map(len, shards)) <= 1


def take_part(index: int, store: str, folder: Path) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=store, rank=index, world_size=2)
    loads = [torch.full((3,), 1.0 + index), torch.full((3,), 10.0)]
    sum_over_processes(loads)
    assert torch.equal(torch.stack(loads), torch.tensor([[3.0], [20.0]]).expand(2, 3))
    # Only the second process is out of time, and both stop after the same step.
    late = time.monotonic() if index else math.inf
    assert not train(TinyStage(), Run(folder=folder, deadline=late, shard=Shard(index, 2)))
    assert torch.load(folder / "tiny.pt", weights_only=True)["step"] == 1
    stage = TinyStage()
    assert train(stage, Run(folder=folder, shard=Shard(index, 2)))
    torch.save(stage.module.state_dict(), folder / f"process{index}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_train_what_one_trains(tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    assert train(TinyStage(), Run(folder=alone))
    spawn(take_part, (f"file://{tmp_path}/store", together), nprocs=2)
    wanted = torch.load(alone / "tiny.pt", weights_only=True)["module"]
    first, second = (torch.load(together / f"process{index}.pt", weights_only=True) for index in range(2))
    start = TinyStage().module.state_dict()
    for name, tensor in wanted.items():
        assert torch.equal(first[name], second[name]), name
        moved = (tensor - start[name]).norm()
        assert (first[name] - tensor).norm() < 0.02 * moved, name
    log = (together / "log.jsonl").read_text().splitlines()
    assert len(log) == 1
