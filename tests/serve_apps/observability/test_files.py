"""The dashboard and the alert rules: well formed, and every metric and label in them is one that is recorded."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import pytest
import yaml

from serve_apps.observability.catalogue import METRICS

FOLDER = files("serve_apps.observability")
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

# `_sum` is left out: Ray only estimates it.
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count")}
EXPORTED = {f"{spec.name}{suffix}": spec for spec in METRICS for suffix in _SUFFIXES[spec.kind]}
ADDED_LABELS = {"job", "instance", "le"}


def expressions() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return [*found, *(rule["expr"] for rule in RULES)]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bmm_\w+", text))


def problems(expression: str) -> list[str]:
    """What in an expression no metric has."""
    names = names_in(expression)
    found = [f"no metric {name}" for name in names - EXPORTED.keys()]
    labels = {label for name in names & EXPORTED.keys() for label in EXPORTED[name].labels} | ADDED_LABELS
    used = re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression)
    used += [label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")]
    return found + [f"no label {label}" for label in set(used) - labels]


@pytest.mark.parametrize("expression", expressions())
def test_expressions_use_what_is_recorded(expression):
    assert problems(expression) == []
    assert expression.count("(") == expression.count(")")


def test_the_check_itself_finds_mistakes():
    assert problems('sum by (kind) (rate(mm_batchs_total{job="x"}[5m]))') == [
        "no metric mm_batchs_total",
        "no label kind",
    ]
    assert problems("sum by (tear) (mm_cache_bytes)") == ["no label tear"]
    # A sum that Ray estimates is no number to show.
    assert problems("mm_ttft_seconds_sum") == ["no metric mm_ttft_seconds_sum"]


def test_every_metric_is_on_the_dashboard():
    shown = {EXPORTED[name].name for panel in PANELS for name in names_in(json.dumps(panel["targets"]))}
    assert {spec.name for spec in METRICS} - shown == set()


def test_the_dashboard_is_one_grafana_takes():
    assert DASHBOARD["schemaVersion"] >= 39
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in PANELS:
        assert panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
    used = set(re.findall(r"\$(\w+)", json.dumps(PANELS).replace("${datasource}", "")))
    assert used - {"__rate_interval"} <= variables.keys()


def test_panels_do_not_overlap():
    cells: dict[tuple[int, int], int] = {}
    for panel in DASHBOARD["panels"]:
        place: dict[str, Any] = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert cells.setdefault((x, y), panel["id"]) == panel["id"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alert_rules_are_complete(rule):
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert rule["annotations"]["summary"]
    assert re.fullmatch(r"\d+[smhd]", rule["for"])
    used = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    kept = {label for group in re.findall(r"by \(([^)]*)\)", rule["expr"]) for label in group.split(", ")}
    # An expression without aggregation keeps the labels of the scrape.
    assert used <= (kept or {"job", "instance"})
