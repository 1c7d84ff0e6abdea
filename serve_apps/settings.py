"""Settings of a server: what is served, where, and how much of it at once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from llm_core.engine.settings import EngineSettings
from mm_pipeline.limits import MediaLimits
from serve_apps.chat.service import ChatLimits

Router = Literal["hash", "round-robin"]
StoreScope = Literal["cluster", "replica"]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Everything `build_app` needs.

    Attributes:
        checkpoint: folder in hub format: config.json, safetensors, tokenizer files.
        model_name: the name clients ask for; empty: the folder's name.
        host, port: where HTTP is served.
        api_keys: clients must send one of these as bearer token; empty: no key is asked for.
        max_body_bytes: larger request bodies are refused unread.
        media: caps on fetched media.
        chat: caps on requests.
        engine: how the decoder runs.
        num_encoders: encoder replicas; media are spread over them by content.
        max_encoders: at most so many while there is work for more than `num_encoders`; 0: never more than these.
        encoder_queue_s: with `max_encoders`, replicas are added so that work that waits is done in so many seconds.
        encoder_device: torch device of the encoders; empty: the engine's.
        encoder_threads: pictures one encoder replica works on at once.
        decoder_workers: processes of each encoder replica in which videos and sounds are decoded, one in each.
        num_threads: torch threads of each replica; 0: one for each core.
        gpus_per_engine, gpus_per_encoder: GPUs that Ray sets aside for each replica, fractions allowed; None: half
            a GPU where the device is one.
        embedding_store_bytes: bytes of embeddings that are kept in memory for requests to come, over all encoder
            replicas; 0 keeps none.
        embedding_store_scope: "cluster": all encoder replicas find what one of them keeps; "replica": each has an
            equal part to itself, for comparison.
        disk_store: folder in which embeddings survive a restart; None: none do.
        disk_store_bytes: most bytes in it.
        router: how media are spread over encoder replicas: "hash", by content, so that the same one meets the same
            replica; "round-robin", in turns, for comparison.
        health_timeout_s: an engine that makes no progress for this long fails GET /health.
    """

    checkpoint: Path
    model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    max_body_bytes: int = 128 * 2**20
    media: MediaLimits = field(default_factory=MediaLimits)
    chat: ChatLimits = field(default_factory=ChatLimits)
    engine: EngineSettings = field(default_factory=EngineSettings)
    num_encoders: int = 1
    max_encoders: int = 0
    encoder_queue_s: float = 5.0
    encoder_device: str = ""
    encoder_threads: int = 2
    decoder_workers: int = 2
    num_threads: int = 0
    gpus_per_engine: float | None = None
    gpus_per_encoder: float | None = None
    embedding_store_bytes: int = 2**30
    embedding_store_scope: StoreScope = "cluster"
    disk_store: Path | None = None
    disk_store_bytes: int = 8 * 2**30
    router: Router = "hash"
    health_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; it must be between 1 and 65535")
        for name in (
            "max_body_bytes",
            "num_encoders",
            "encoder_queue_s",
            "encoder_threads",
            "decoder_workers",
            "disk_store_bytes",
            "health_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be greater than 0")
        if self.max_encoders and self.max_encoders < self.num_encoders:
            raise ValueError(
                f"max_encoders is {self.max_encoders}; it must be 0 or at least num_encoders, {self.num_encoders}"
            )
        if self.embedding_store_bytes < 0:
            raise ValueError(
                f"embedding_store_bytes is {self.embedding_store_bytes}; it must be 0 (keeps none) or more"
            )
        for name, choices in (("router", get_args(Router)), ("embedding_store_scope", get_args(StoreScope))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        if any(not key.strip() or not key.isascii() for key in self.api_keys):
            raise ValueError("an API key is empty or not plain ASCII; give each key as ASCII text")

    def resolved(self) -> ServerSettings:
        """The same settings with the folder absolute, the model named and every default decided.

        Raises ValueError when the folder holds no checkpoint.
        """
        folder = self.checkpoint.expanduser().resolve()
        if not folder.is_dir():
            raise ValueError(f"there is no folder {self.checkpoint}; give a checkpoint folder")
        if not (folder / "config.json").is_file():
            raise ValueError(f"{self.checkpoint} has no config.json; give a checkpoint folder in hub format")
        encoder_device = self.encoder_device or self.engine.device
        return replace(
            self,
            checkpoint=folder,
            disk_store=None if self.disk_store is None else self.disk_store.expanduser().resolve(),
            model_name=self.model_name or folder.name,
            encoder_device=encoder_device,
            num_threads=self.num_threads or os.cpu_count() or 1,
            gpus_per_engine=_gpus(self.engine.device, self.gpus_per_engine),
            gpus_per_encoder=_gpus(encoder_device, self.gpus_per_encoder),
        )

    @property
    def base_url(self) -> str:
        """What clients use as base URL."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}/v1" if ":" in host else f"http://{host}:{self.port}/v1"


def _gpus(device: str, asked: float | None) -> float:
    if asked is not None:
        return asked
    return 0.5 if device.startswith("cuda") else 0.0
