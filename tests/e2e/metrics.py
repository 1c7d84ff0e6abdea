"""What GET /metrics says."""

from __future__ import annotations

import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import RunningServer


def scrape(server: RunningServer) -> dict[str, list[Any]]:
    """The samples of GET /metrics by family."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as response:
        text = response.read().decode()
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def total(samples: list[Any], name: str, **labels: str) -> float:
    return sum(
        sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items()
    )
