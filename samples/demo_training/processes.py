"""Several processes train as one: each makes its share of a batch and of the optimiser's work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed
from torch import nn


@dataclass(frozen=True)
class Shard:
    """What one process of `count` makes of a batch: every count-th item from `index` on."""

    index: int = 0
    count: int = 1

    def __contains__(self, item: int) -> bool:
        return item % self.count == self.index


WHOLE = Shard()


def agree(module: nn.Module, ends: bool) -> bool:
    """Averages the gradients of all processes; True when any of them ends."""
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        # An expert that no row of this process chose has none.
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in learning if parameter.grad is not None]
    flat = torch.cat([*(gradient.flatten() for gradient in gradients), torch.tensor([float(ends)])])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    at = 0
    for gradient in gradients:
        gradient.copy_(flat[at : at + gradient.numel()].view_as(gradient))
        at += gradient.numel()
    return bool(flat[-1] > 0)


def sum_over_processes(tensors: Sequence[torch.Tensor]) -> None:
    """Each becomes, in place, the sum of what all processes hold; they share a shape."""
    if torch.distributed.is_initialized():
        stacked = torch.stack(list(tensors))
        torch.distributed.all_reduce(stacked)
        for tensor, summed in zip(tensors, stacked, strict=True):
            tensor.copy_(summed)


def share_out(compute: Callable[[torch.Tensor], torch.Tensor], items: torch.Tensor) -> torch.Tensor:
    """compute(items), each process computing its share; items [n, ...] are equal in all of them, and stay n."""
    if not torch.distributed.is_initialized():
        return compute(items)
    mine = slice(torch.distributed.get_rank(), None, torch.distributed.get_world_size())
    found = torch.zeros_like(items)
    if len(items[mine]):
        found[mine] = compute(items[mine])
    torch.distributed.all_reduce(found)
    return found
