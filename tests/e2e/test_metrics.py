"""Metrics, timings and deadlines over real Ray Serve."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest

from serve_apps.observability.catalogue import METRICS
from tests.e2e.conftest import RunningServer
from tests.e2e.media import data_url, picture
from tests.e2e.metrics import scrape, total

pytestmark = pytest.mark.e2e


def ask(
    server: RunningServer, headers: Mapping[str, str], **fields: Any
) -> tuple[int, dict, Mapping[str, str]]:
    """Status, body and headers of a question about a picture."""
    content = [{"type": "image_url", "image_url": {"url": data_url(picture())}}]
    body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.load(response), response.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error), error.headers


def test_a_request_arrives_in_the_metrics_and_its_timings_in_the_header(server):
    status, answer, headers = ask(server, {}, max_tokens=4)
    assert status == 200
    stages = {stage.split(";")[0] for stage in headers["Server-Timing"].split(", ")}
    assert {f"{stage}_ms" for stage in stages} == set(answer["timings"])
    # Ray's processes report every 10 seconds.
    deadline = time.monotonic() + 60
    families: dict[str, list[Any]] = {}
    while not total(families.get("mm_tokens", []), "mm_tokens_total", kind="completion"):
        assert time.monotonic() < deadline, f"the tokens never showed; there are {sorted(families)}"
        time.sleep(0.5)
        families = scrape(server)
    assert total(families["mm_answers"], "mm_answers_total", outcome="done") >= 1
    route = {"route": "/v1/chat/completions", "status": "200", "deployment": "Ingress"}
    assert total(families["mm_requests"], "mm_requests_total", **route) >= 1
    assert (
        total(families["mm_stage_seconds"], "mm_stage_seconds_count", modality="image", stage="encode") >= 1
    )
    assert total(families["mm_ttft_seconds"], "mm_ttft_seconds_bucket", le="+Inf") >= 1
    assert set(families) <= {spec.name for spec in METRICS}


def test_a_deadline_frees_what_the_request_holds(server):
    status, answer, _ = ask(
        server, {"X-Request-Timeout-S": "1.5"}, max_tokens=4000, ignore_eos=True, temperature=0
    )
    assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
    server.wait_for(lambda engine: engine["num_running"] == 0 and engine["num_waiting"] == 0, 20)
