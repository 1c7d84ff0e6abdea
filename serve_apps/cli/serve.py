"""`mmserve serve CHECKPOINT`: starts Ray on this machine, the application, and waits for Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from llm_core.engine.settings import Dtype, EngineSettings
from llm_core.kv.tiers.settings import TierPolicy, TierSettings
from llm_core.scheduler import Policy
from mm_pipeline.limits import MediaLimits
from serve_apps.chat.service import ChatLimits
from serve_apps.cli import CliError
from serve_apps.settings import Router, ServerSettings, StoreScope

API_KEY_VARIABLE = "MMSERVE_API_KEY"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every default is the settings dataclasses' own."""
    server, engine, media, chat = ServerSettings, EngineSettings(), MediaLimits(), ChatLimits()
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", type=Path, help="folder in hub format")
    add("--host", default=_default(server, "host"), help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=_default(server, "port"), help="(default: %(default)s)")
    add("--model-name", default="", help="name that clients ask for (default: the folder's name)")
    add(
        "--api-key",
        action="append",
        default=[],
        help=f"a key clients must send; may be given more than once; ${API_KEY_VARIABLE} works too",
    )
    add("--device", default=engine.device, help="torch device (default: %(default)s)")
    add("--dtype", choices=get_args(Dtype), default=engine.dtype, help="(default: %(default)s)")
    add(
        "--max-context",
        type=int,
        default=engine.max_context,
        help="most tokens of prompt and answer together; 0: the model's (default: %(default)s)",
    )
    add(
        "--kv-memory-mib",
        type=int,
        default=engine.kv_memory_bytes >> 20,
        help="memory for the KV cache in MiB (default: %(default)s)",
    )
    add(
        "--max-running",
        type=int,
        default=engine.max_running,
        help="most answers generated at once (default: %(default)s)",
    )
    add(
        "--prefill-chunk-tokens",
        type=int,
        default=engine.prefill_chunk_tokens,
        help="most tokens of one step; prompts get what the answers leave (default: %(default)s)",
    )
    add(
        "--scheduling",
        choices=get_args(Policy),
        default=engine.scheduling,
        help="whose prompt goes first: who has least to run, with a credit for waiting, or who came first "
        "(default: %(default)s)",
    )
    add(
        "--waiting-credit",
        metavar="TOKENS",
        type=float,
        default=engine.waiting_credit,
        help="tokens to run that a second of waiting makes up for, at least (default: %(default)s)",
    )
    add(
        "--no-prefix-cache",
        action="store_true",
        help="run every prompt from its first token, also where another began alike",
    )
    add(
        "--prefix-window-stride",
        metavar="TOKENS",
        type=int,
        default=engine.prefix_window_stride,
        help="tokens between the places from which others can go on in a short prompt (default: %(default)s)",
    )
    add(
        "--kv-host-mib",
        type=int,
        default=0,
        help="host memory for prefixes that the KV memory has no room for, in MiB (default: %(default)s)",
    )
    add(
        "--kv-folder",
        metavar="DIR",
        type=Path,
        help="where prefixes go that the host memory has no room for; they survive restarts (default: nowhere)",
    )
    add("--kv-disk-mib", type=int, default=0, help="most MiB of files there (default: %(default)s)")
    add(
        "--kv-tier-policy",
        choices=get_args(TierPolicy),
        default=engine.tiers.policy,
        help="whether prefixes are written below when there is no room for them above, or at once "
        "(default: %(default)s)",
    )
    add(
        "--max-queued",
        type=int,
        default=engine.max_queued,
        help="most requests that wait for their turn (default: %(default)s)",
    )
    add(
        "--max-requests",
        type=int,
        default=chat.max_requests,
        help="most requests worked on at once, downloads included (default: %(default)s)",
    )
    add(
        "--default-max-tokens",
        type=int,
        default=chat.default_max_tokens,
        help="length of an answer when a request does not say (default: %(default)s)",
    )
    add(
        "--request-timeout-s",
        type=float,
        default=chat.request_timeout_s,
        help="most seconds that one request may take; it may ask for fewer (default: %(default)s)",
    )
    add(
        "--num-encoders",
        type=int,
        default=_default(server, "num_encoders"),
        help="encoder replicas (default: %(default)s)",
    )
    add(
        "--max-encoders",
        type=int,
        default=_default(server, "max_encoders"),
        help="most of them while there is work for more; 0: always the same number (default: %(default)s)",
    )
    add(
        "--encoder-queue-s",
        type=float,
        default=_default(server, "encoder_queue_s"),
        help="add encoder replicas until waiting work is done in so many seconds (default: %(default)s)",
    )
    add(
        "--router",
        choices=get_args(Router),
        default=_default(server, "router"),
        help="how media are spread over encoder replicas: by content or in turns (default: %(default)s)",
    )
    add(
        "--embedding-store-bytes",
        type=int,
        default=_default(server, "embedding_store_bytes"),
        help="memory for embeddings that later requests may use; 0: none (default: %(default)s)",
    )
    add(
        "--embedding-store-scope",
        choices=get_args(StoreScope),
        default=_default(server, "embedding_store_scope"),
        help="who finds them: all encoder replicas, or, for comparison, each its own (default: %(default)s)",
    )
    add(
        "--disk-store",
        metavar="DIR",
        type=Path,
        default=_default(server, "disk_store"),
        help="folder for embeddings that survive a restart (default: none)",
    )
    add(
        "--disk-store-bytes",
        type=int,
        default=_default(server, "disk_store_bytes"),
        help="most bytes in that folder (default: %(default)s)",
    )
    add(
        "--decoder-workers",
        type=int,
        default=_default(server, "decoder_workers"),
        help="processes that decode videos and sounds, for each encoder replica (default: %(default)s)",
    )
    add(
        "--num-threads",
        type=int,
        default=_default(server, "num_threads"),
        help="torch threads of each replica; 0: one for each core (default: %(default)s)",
    )
    add(
        "--health-timeout-s",
        type=float,
        default=_default(server, "health_timeout_s"),
        help="an engine without progress for so many seconds fails /health (default: %(default)s)",
    )
    add(
        "--allowed-domain",
        action="append",
        default=[],
        help="download media from this domain only; may be given more than once (default: every public host)",
    )
    add(
        "--allow-private-hosts",
        action="store_true",
        help="let media URLs reach private addresses; only where all clients are trusted",
    )
    add(
        "--file-root",
        type=Path,
        default=media.file_root,
        help="serve file: URLs under this folder (default: none)",
    )
    add(
        "--max-media-mib",
        type=int,
        default=media.max_bytes >> 20,
        help="most MiB of one media item (default: %(default)s)",
    )
    add(
        "--max-video-pixels",
        type=int,
        default=media.max_video_pixels,
        help="most pixels of a video's frame before it is resized (default: %(default)s)",
    )
    add(
        "--max-video-frames",
        type=int,
        default=media.max_video_frames,
        help="most frames sampled from one video (default: %(default)s)",
    )
    add(
        "--max-media-duration-s",
        type=float,
        default=media.max_media_duration_s,
        help="longest video or sound, in seconds (default: %(default)s)",
    )
    add(
        "--decode-timeout-s",
        type=float,
        default=media.decode_timeout_s,
        help="most seconds that the decoding of one video or sound may take (default: %(default)s)",
    )


def settings_from(args: argparse.Namespace) -> ServerSettings:
    """The settings a command line asks for. Raises CliError."""
    from_environment = os.environ.get(API_KEY_VARIABLE, "")
    try:
        return ServerSettings(
            checkpoint=args.checkpoint,
            model_name=args.model_name,
            host=args.host,
            port=args.port,
            api_keys=(*args.api_key, *([from_environment] if from_environment else [])),
            num_encoders=args.num_encoders,
            max_encoders=args.max_encoders,
            encoder_queue_s=args.encoder_queue_s,
            router=args.router,
            embedding_store_bytes=args.embedding_store_bytes,
            embedding_store_scope=args.embedding_store_scope,
            disk_store=args.disk_store,
            disk_store_bytes=args.disk_store_bytes,
            decoder_workers=args.decoder_workers,
            num_threads=args.num_threads,
            health_timeout_s=args.health_timeout_s,
            chat=ChatLimits(
                max_requests=args.max_requests,
                default_max_tokens=args.default_max_tokens,
                request_timeout_s=args.request_timeout_s,
            ),
            media=MediaLimits(
                max_bytes=args.max_media_mib << 20,
                max_video_pixels=args.max_video_pixels,
                max_video_frames=args.max_video_frames,
                max_media_duration_s=args.max_media_duration_s,
                decode_timeout_s=args.decode_timeout_s,
                allowed_domains=tuple(args.allowed_domain),
                allow_private_hosts=args.allow_private_hosts,
                file_root=args.file_root,
            ),
            engine=EngineSettings(
                device=args.device,
                dtype=args.dtype,
                max_context=args.max_context,
                kv_memory_bytes=args.kv_memory_mib << 20,
                max_running=args.max_running,
                prefill_chunk_tokens=args.prefill_chunk_tokens,
                scheduling=args.scheduling,
                waiting_credit=args.waiting_credit,
                prefix_cache=not args.no_prefix_cache,
                prefix_window_stride=args.prefix_window_stride,
                max_queued=args.max_queued,
                tiers=TierSettings(
                    host_bytes=args.kv_host_mib << 20,
                    folder=args.kv_folder,
                    disk_bytes=args.kv_disk_mib << 20,
                    policy=args.kv_tier_policy,
                ),
            ),
        ).resolved()
    except ValueError as error:
        raise CliError(str(error)) from error


def run(args: argparse.Namespace) -> int:
    """Serves until Ctrl-C or SIGTERM."""
    settings = settings_from(args)
    # Ray reads its environment when it is imported, so the check of the arguments comes first.
    from serve_apps.deployments.server import Server, StartError

    stop = threading.Event()
    server = Server(settings)
    try:
        try:
            server.start()
        except StartError as error:
            raise CliError(str(error)) from error
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        print(f"Ready: {settings.base_url}  model {settings.model_name}", flush=True)
        stop.wait()
    finally:
        server.stop()
    return 0


def _default(settings: type[Any], name: str) -> Any:
    return next(field.default for field in fields(settings) if field.name == name)
