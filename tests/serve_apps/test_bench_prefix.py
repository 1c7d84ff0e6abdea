"""What `mmserve bench prefix` counts: the closed form of KV bytes, and what a cache without bounds would have."""

from __future__ import annotations

import pytest
import torch

from llm_core.config import load_config
from llm_core.kv.dual import DualPool
from llm_core.kv.storage import KINDS, KVStorage
from serve_apps.bench.prefix import kv_bytes_ratio
from serve_apps.bench.prefix_trace import Ideal
from serve_apps.checkpoint.sizes import text_config

PAGE = 16


@pytest.mark.parametrize("num_tokens", [PAGE, 1024, 4096, 32_768])
def test_the_closed_form_is_what_the_pools_hold(num_tokens: int) -> None:
    config = load_config(text_config("tiny"))
    pages = num_tokens // PAGE
    pool = DualPool(
        num_full_pages=pages,
        num_swa_pages=pages,
        page_size=PAGE,
        window_keys=config.swa.window_keys or 1,
        step_tokens=512,
    )
    storage = KVStorage(config, num_pages={"full": pages, "swa": pages}, page_size=PAGE, dtype=torch.bfloat16)
    kv = pool.begin()
    while kv.num_tokens < num_tokens:
        pool.extend(kv, min(512, num_tokens - kv.num_tokens))
        pool.slide(kv, kv.num_tokens)
    held = storage.num_bytes("full", len(kv.full_pages)) + storage.num_bytes("swa", pool.num_swa_pages(kv))
    full_width = sum(storage.num_bytes(kind, pages) for kind in KINDS)
    assert kv_bytes_ratio(config, num_tokens) == held / full_width
    if num_tokens == 32_768:
        assert held / full_width < 0.2


def test_an_ideal_cache_knows_whole_pages_but_for_the_last_token() -> None:
    ideal = Ideal(4)
    assert ideal.meet(range(10), (), 10) == 0
    assert ideal.meet(range(10), (), 10) == 8
    assert ideal.meet(range(8), (), 8) == 4
    assert ideal.meet([*range(6), 99, 99, 8, 9], (), 10) == 4
    assert ideal.num_pages == 3
