"""The text of GET /metrics: this server's metrics from every node of the cluster, in Prometheus' text format.

Ray's agent on each node exports the metrics of all processes there, on a port of its own that changes with every
start, among some hundred metrics of Ray. Asking the agents gives one stable address, next to the API, that covers
all replicas. A registry inside the ingress would see its own process only, and asking each replica would put
scrapes into the queues of requests. The price: values are as old as Ray's reports, up to 10 seconds.

Knows Ray's list of nodes and the prefix of its exports. Does not know which metrics there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import aiohttp
import ray

from serve_apps.api.errors import unavailable

TIMEOUT_SECONDS = 3.0

_RAY_PREFIX = "ray_"
_OWN_PREFIX = "ray_mm_"

_log = logging.getLogger(__name__)


async def exposition() -> str:
    """The metrics of all nodes that answer. Raises ApiError 503 when none does."""
    urls = await asyncio.to_thread(agent_urls)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
        answers = await asyncio.gather(*(_text(session, url) for url in urls))
    texts = [text for text in answers if text is not None]
    if not texts:
        raise unavailable("No node of the cluster exports its metrics; they need ray[serve] on every node.")
    return own_metrics(texts)


def agent_urls() -> list[str]:
    """Where the nodes that are alive export their metrics. Blocks on Ray."""
    return [
        f"http://{_host(node['NodeManagerAddress'])}:{node['MetricsExportPort']}/metrics"
        for node in ray.nodes()  # type: ignore[no-untyped-call]
        if node["Alive"] and node["MetricsExportPort"] > 0
    ]


def own_metrics(texts: Iterable[str]) -> str:
    """One exposition from those of several nodes: only this server's metrics, without Ray's prefix.

    The lines of a metric stand together, which the format asks for; the first node's HELP and TYPE serve all.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for text in texts:
        family = ""
        seen_here: set[str] = set()
        for line in text.splitlines():
            if line.startswith("# "):
                _, word, name, *_ = line.split(" ", 3)
                family = name
                if not name.startswith(_OWN_PREFIX):
                    continue
                if name not in heads or name in seen_here:
                    heads.setdefault(name, []).append(f"# {word} {line[len(f'# {word} {_RAY_PREFIX}') :]}")
                    seen_here.add(name)
            elif line and family.startswith(_OWN_PREFIX):
                samples.setdefault(family, []).append(line.removeprefix(_RAY_PREFIX))
    lines = [line for name, head in sorted(heads.items()) for line in (*head, *samples.get(name, ()))]
    return "".join(f"{line}\n" for line in lines)


async def _text(session: aiohttp.ClientSession, url: str) -> str | None:
    try:
        async with session.get(url) as response:
            return await response.text()
    except (aiohttp.ClientError, TimeoutError) as error:
        _log.warning("no metrics from %s: %s", url, error)
        return None


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
