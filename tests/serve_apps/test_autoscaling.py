"""How many replicas the load asks for: the meter of one replica, the policy over all, and Ray's bounds on it."""

from __future__ import annotations

from typing import Any

import pytest
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serve_apps.deployments.autoscaling import LOAD, LoadMeter, autoscaling_config, queue_cost_policy
from serve_apps.deployments.encoder import encoder_deployment
from serve_apps.settings import ServerSettings


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> tuple[LoadMeter, list[float]]:
    """One whose clock shows the last of the times."""
    times = [50.0]
    monkeypatch.setattr("serve_apps.deployments.autoscaling.time.monotonic", lambda: times[-1])
    return LoadMeter(queue_s=5.0), times


def test_a_replica_that_is_half_busy_is_half_a_load(meter):
    measured, times = meter
    times.append(60.0)
    assert measured.load([(5.0, 0.0), (1.0, 0.0)]) == pytest.approx(0.5)
    times.append(70.0)
    assert measured.load([(5.0, 0.0), (9.0, 0.0)]) == pytest.approx(0.8)
    times.append(80.0)
    assert measured.load([(5.0, 0.0), (9.0, 0.0)]) == 0.0


def test_waiting_work_asks_for_replicas_to_do_it_in_time(meter):
    measured, times = meter
    times.append(60.0)
    # 20 seconds of work in 5 seconds are four replicas, beside the one at work.
    assert measured.load([(10.0, 20.0), (1.0, 2.0)]) == pytest.approx(5.0)


def test_many_calls_that_cost_little_ask_for_nothing(meter):
    measured, times = meter
    times.append(60.0)
    # Whatever their number: 0.1 s of work waits.
    assert measured.load([(2.0, 0.1)]) == pytest.approx(0.22)


def context(metrics: Any, current: int = 2) -> AutoscalingContext:
    return AutoscalingContext(
        deployment_id=None,
        deployment_name="Encoder",
        app_name=None,
        current_num_replicas=current,
        target_num_replicas=current,
        running_replicas=[],
        total_num_requests=1000,
        total_queued_requests=1000,
        aggregated_metrics=metrics,
        raw_metrics={},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=None,
        config=None,
    )


@pytest.mark.parametrize(
    ("metrics", "wanted"),
    [
        ({LOAD: {"a": 1.4, "b": 0.9}}, 2.3),
        ({LOAD: {"a": 0.0, "b": 0.1}}, 0.1),
        ({LOAD: {"a": 9.0}}, 9.0),
        ({}, 2),
        (None, 2),
    ],
)
def test_the_policy_adds_up_loads_and_keeps_what_is_there_without_any(metrics, wanted):
    assert queue_cost_policy(context(metrics)) == (pytest.approx(wanted), {})


def test_ray_takes_the_configuration_and_finds_the_policy():
    config = AutoscalingConfig(**autoscaling_config(1, 3))
    assert config.policy.get_policy()(context({LOAD: {"a": 2.5}})) == (2.5, {})
    assert (config.min_replicas, config.max_replicas) == (1, 3)


@pytest.mark.parametrize(("most", "expected"), [(0, (2, 2)), (2, (2, 2)), (3, (2, 3))])
def test_replicas_are_added_only_where_there_may_be_more(tmp_path, most, expected):
    (tmp_path / "config.json").write_text("{}")
    settings = ServerSettings(checkpoint=tmp_path, num_encoders=2, max_encoders=most).resolved()
    deployment = encoder_deployment(settings)._bound_deployment
    scaling = deployment._deployment_config.autoscaling_config
    fixed = (deployment.num_replicas, deployment.num_replicas)
    assert (fixed if scaling is None else (scaling.min_replicas, scaling.max_replicas)) == expected
