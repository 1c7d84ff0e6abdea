"""GET /metrics: what is kept of the nodes' exports, and nodes that do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from serve_apps.api.errors import ApiError
from serve_apps.observability import exposition as module
from serve_apps.observability.exposition import agent_urls, exposition, own_metrics

NODE_A = """\
# HELP ray_gcs_actors_count Number of actors, as in ray_mm_answers.
# TYPE ray_gcs_actors_count gauge
ray_gcs_actors_count{State="ALIVE"} 3.0
# HELP ray_mm_answers_total Chat requests by how they ended: ray_ and # signs.
# TYPE ray_mm_answers_total counter
ray_mm_answers_total{WorkerId="a",outcome="done"} 2.0
# HELP ray_mm_ttft_seconds Seconds.
# TYPE ray_mm_ttft_seconds histogram
ray_mm_ttft_seconds_bucket{WorkerId="a",le="1.0"} 1.0
ray_mm_ttft_seconds_bucket{WorkerId="a",le="+Inf"} 1.0
ray_mm_ttft_seconds_count{WorkerId="a"} 1.0
ray_mm_ttft_seconds_sum{WorkerId="a"} 0.5
"""
NODE_B = """\
# HELP ray_mm_queued_items Waiting.
# TYPE ray_mm_queued_items gauge
ray_mm_queued_items{WorkerId="b"} 7.0
# HELP ray_mm_answers_total Chat requests by how they ended: ray_ and # signs.
# TYPE ray_mm_answers_total counter
ray_mm_answers_total{WorkerId="b",outcome="done"} 5.0
"""


def test_nodes_are_merged_into_one_valid_exposition():
    text = own_metrics([NODE_A, NODE_B])
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {name: family.type for name, family in families.items()} == {
        "mm_answers": "counter",
        "mm_queued_items": "gauge",
        "mm_ttft_seconds": "histogram",
    }
    answers = {sample.labels["WorkerId"]: sample.value for sample in families["mm_answers"].samples}
    assert answers == {"a": 2.0, "b": 5.0}
    assert families["mm_answers"].documentation == "Chat requests by how they ended: ray_ and # signs."
    assert len(families["mm_ttft_seconds"].samples) == 4
    # The format takes each TYPE once, and all samples of a metric together.
    assert text.count("# TYPE mm_answers_total") == 1
    assert "ray_mm" not in text.replace("ray_ and", "")


def test_nothing_of_ours_is_an_empty_exposition():
    assert own_metrics(["# HELP ray_x y\n# TYPE ray_x gauge\nray_x 1.0\n", ""]) == ""


@pytest.fixture
async def agents() -> AsyncIterator[list[str]]:
    """The addresses of: two nodes, one whose agent is broken, one that hangs, one that is gone."""

    def page(text: str):
        async def answer(request: web.Request) -> web.Response:
            return web.Response(text=text)

        return answer

    async def broken(request: web.Request) -> web.Response:
        raise web.HTTPInternalServerError

    released = asyncio.Event()

    async def hanging(request: web.Request) -> web.Response:
        await released.wait()
        return web.Response()

    app = web.Application()
    app.router.add_get("/a", page(NODE_A))
    app.router.add_get("/b", page(NODE_B))
    app.router.add_get("/broken", broken)
    app.router.add_get("/hanging", hanging)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield [f"{base}/{name}" for name in ("a", "b", "broken", "hanging")] + ["http://127.0.0.1:9/metrics"]
    released.set()
    await runner.cleanup()


async def test_nodes_that_do_not_answer_are_left_out(agents, monkeypatch, caplog):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(module, "agent_urls", lambda: agents)
    assert await exposition() == own_metrics([NODE_A, NODE_B])
    assert len(caplog.records) == 3


async def test_no_answer_at_all_is_503(agents, monkeypatch):
    for urls in (agents[2:3], []):
        monkeypatch.setattr(module, "agent_urls", lambda urls=urls: urls)
        with pytest.raises(ApiError, match="exports its metrics") as info:
            await exposition()
        assert info.value.status == 503


def test_only_nodes_that_are_alive_and_export_are_asked(monkeypatch):
    def node(address: str, port: int, alive: bool = True) -> dict[str, object]:
        return {"NodeManagerAddress": address, "MetricsExportPort": port, "Alive": alive}

    nodes = [node("10.0.0.1", 5), node("10.0.0.2", 5, alive=False), node("10.0.0.3", 0), node("fd00::1", 6)]
    monkeypatch.setattr(module.ray, "nodes", lambda: nodes)
    assert agent_urls() == ["http://10.0.0.1:5/metrics", "http://[fd00::1]:6/metrics"]
