"""Muon (Jordan and others, 2024): momentum whose matrix is made orthogonal before each step.

torch.optim.Muon does that in bfloat16, which CPUs without bfloat16 instructions multiply over fifty times slower
than float32, those with them twice as fast; this one has the choice, and takes all matrices of one shape at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from samples.demo_training.processes import share_out

# Coefficients of the quintic iteration from the method's publication.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """For matrices only. Steps are scaled to the size that AdamW's have, so that one learning rate serves both."""

    def __init__(
        self,
        matrices: Iterable[torch.nn.Parameter] | Iterable[dict[str, Any]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        bf16: bool = False,
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._orthogonal = partial(orthogonal, dtype=torch.bfloat16 if bf16 else torch.float32)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One step; `closure` is not used."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[torch.Tensor, torch.Tensor]]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append((matrix, matrix.grad))
            for shape, pairs in by_shape.items():
                updates = []
                for matrix, gradient in pairs:
                    state = self.state[matrix]
                    if not state:
                        state["momentum"] = torch.zeros_like(matrix)
                    momentum = state["momentum"]
                    momentum.lerp_(gradient, 1 - group["momentum"])
                    updates.append(gradient.lerp(momentum, group["momentum"]))
                scale = 0.2 * max(shape) ** 0.5
                for (matrix, _), update in zip(
                    pairs, share_out(self._orthogonal, torch.stack(updates)), strict=True
                ):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(update, alpha=-group["lr"] * scale)


def orthogonal(matrices: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """[n, rows, columns] to nearly orthogonal matrices, by Newton and Schulz's iteration. dtype: to multiply in."""
    wide = matrices.shape[1] > matrices.shape[2]
    x: torch.Tensor = matrices.mT if wide else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).to(dtype)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return (x.mT if wide else x).to(matrices.dtype)
