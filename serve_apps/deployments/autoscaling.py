"""How many encoder replicas there should be: as many as the work keeps busy, and more while work piles up.

Ray Serve's controller runs the policy from a copy of this module's code, which therefore imports nothing of the
project.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

LOAD = "load"
_LOOK_BACK_S = 15.0
_UPSCALE_DELAY_S = 5.0
# A replica takes what it has stored with it, so it must have been idle for long.
_DOWNSCALE_DELAY_S = 300.0


class LoadMeter:
    """How many replicas the work of one replica would keep busy. Not thread-safe."""

    def __init__(self, queue_s: float) -> None:
        """queue_s: in so many seconds as many replicas as are asked for work off what waits."""
        self._queue_s = queue_s
        self._measured_s = time.monotonic()
        self._busy_s: tuple[float, ...] = ()

    def load(self, stages: Sequence[tuple[float, float]]) -> float:
        """stages: of each of the replica's stages the seconds it has been at work since it began, and the seconds
        of work that wait for it. The stage with most to do counts: the share of the time since the last call in
        which it was at work, and its waiting work over `queue_s`.
        """
        now_s = time.monotonic()
        passed_s = max(now_s - self._measured_s, 1e-6)
        before = self._busy_s or (0.0,) * len(stages)
        self._measured_s, self._busy_s = now_s, tuple(busy_s for busy_s, _ in stages)
        return max(
            min(1.0, (busy_s - busy_before_s) / passed_s) + queued_s / self._queue_s
            for (busy_s, queued_s), busy_before_s in zip(stages, before, strict=True)
        )


def queue_cost_policy(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """The sum of the replicas' loads, which Ray rounds up and holds between the bounds; as before without any."""
    loads = (context.aggregated_metrics or {}).get(LOAD)
    return (sum(loads.values()) if loads else context.target_num_replicas), {}


def autoscaling_config(min_replicas: int, max_replicas: int) -> dict[str, Any]:
    """What a deployment is given whose replicas report their `LOAD` in `record_autoscaling_stats`."""
    return {
        "min_replicas": min_replicas,
        "max_replicas": max_replicas,
        "look_back_period_s": _LOOK_BACK_S,
        "upscale_delay_s": _UPSCALE_DELAY_S,
        "downscale_delay_s": _DOWNSCALE_DELAY_S,
        "policy": {"policy_function": f"{__name__}:{queue_cost_policy.__name__}"},
    }
