"""Server settings: what they refuse, and what `resolved` decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_core.engine.settings import EngineSettings
from serve_apps.settings import ServerSettings


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"port": 0}, "port is 0; it must be between 1 and 65535"),
        ({"port": 65536}, "65536"),
        ({"num_encoders": 0}, "num_encoders is 0"),
        (
            {"num_encoders": 3, "max_encoders": 2},
            "max_encoders is 2; it must be 0 or at least num_encoders, 3",
        ),
        ({"encoder_queue_s": 0.0}, "encoder_queue_s is 0"),
        ({"decoder_workers": 0}, "decoder_workers is 0"),
        ({"embedding_store_bytes": -1}, "embedding_store_bytes is -1; it must be 0"),
        ({"disk_store_bytes": 0}, "disk_store_bytes is 0"),
        ({"router": "random"}, "router is 'random'; it must be one of hash, round-robin"),
        ({"embedding_store_scope": "node"}, "scope is 'node'; it must be one of cluster, replica"),
        ({"health_timeout_s": 0}, "health_timeout_s is 0"),
        ({"max_body_bytes": -1}, "max_body_bytes is -1"),
        ({"api_keys": ("",)}, "API key"),
        ({"api_keys": ("clé",)}, "API key"),
    ],
)
def test_values_out_of_range_are_refused(fields, part):
    with pytest.raises(ValueError, match=part):
        ServerSettings(checkpoint=Path("x"), **fields)


def test_resolved_names_the_model_and_decides_the_defaults(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    settings = ServerSettings(checkpoint=tmp_path).resolved()
    assert settings.model_name == tmp_path.name
    assert settings.num_threads >= 1
    assert (settings.encoder_device, settings.gpus_per_engine, settings.gpus_per_encoder) == ("cpu", 0.0, 0.0)
    assert settings.resolved() == settings


def test_a_gpu_is_shared_unless_said_otherwise(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    engine = EngineSettings(device="cuda")
    shared = ServerSettings(checkpoint=tmp_path, engine=engine).resolved()
    assert (shared.encoder_device, shared.gpus_per_engine, shared.gpus_per_encoder) == ("cuda", 0.5, 0.5)
    own = ServerSettings(checkpoint=tmp_path, engine=engine, encoder_device="cpu", gpus_per_engine=1.0)
    assert (own.resolved().gpus_per_engine, own.resolved().gpus_per_encoder) == (1.0, 0.0)


def test_a_folder_without_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        ServerSettings(checkpoint=tmp_path / "none").resolved()
    with pytest.raises(ValueError, match=r"no config\.json"):
        ServerSettings(checkpoint=tmp_path).resolved()


def test_api_keys_are_not_printed():
    assert "secret" not in repr(ServerSettings(checkpoint=Path("x"), api_keys=("secret",)))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8000/v1"),
        ("::", "http://[::1]:8000/v1"),
        ("h", "http://h:8000/v1"),
    ],
)
def test_the_base_url_is_one_that_can_be_opened(host, url):
    assert ServerSettings(checkpoint=Path("x"), host=host).base_url == url
