"""Builds the parts of a chat service from a checkpoint folder. Knows which classes they are and what each reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from llm_core.weights import CheckpointFolder
from mm_pipeline.audio import AudioSettings
from mm_pipeline.batcher import BatchReport
from mm_pipeline.encoders import AUDIO_TOKENIZER_FOLDER, create_audio_encoder, create_image_encoder
from mm_pipeline.encoders.batched import BatchedEncoders
from mm_pipeline.encoders.staging import staging_for
from mm_pipeline.fetch import Fetcher as MediaFetcher
from mm_pipeline.image import ImageSettings, load_codecs
from mm_pipeline.limits import MediaLimits
from mm_pipeline.metrics import NO_RECORDER, Recorder
from mm_pipeline.pipeline import ImagePipeline, MediaEncoder
from mm_pipeline.prompt import ChatPrompter, ExpansionSettings, SpecialTokens, expand
from serve_apps.chat.base import Backend, EncodedItem, Fetcher, FinalPrompt, PlacedMedia
from serve_apps.chat.encode import ItemEncoder
from serve_apps.chat.service import ChatLimits, ChatService
from serve_apps.chat.token_texts import TokenizerTexts
from serve_apps.checkpoint.audio_tokenizer import open_audio_tokenizer


class FolderPrompter:
    """The chat template and special tokens of a checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self._prompter = ChatPrompter.from_folder(folder)
        config = _config(folder)
        self._tokens = SpecialTokens.from_config(config)
        self._settings = ExpansionSettings.from_config(config)

    def render(self, messages: list[dict[str, Any]]) -> Any:
        """See `Prompter.render`."""
        return self._prompter.render(messages)

    def expand(self, prompt: Any, media: Sequence[EncodedItem]) -> FinalPrompt:
        """See `Prompter.expand`."""
        expanded = expand(prompt, media, self._tokens, self._prompter.encode_text, self._settings)
        return FinalPrompt(
            token_ids=expanded.token_ids,
            spans=tuple(
                PlacedMedia(
                    start=span.start,
                    length=span.length,
                    media_index=span.media_index,
                    offset=span.offset,
                    modality=span.modality,
                )
                for span in expanded.spans
            ),
            notes=expanded.notes,
        )


def create_fetcher(limits: MediaLimits) -> MediaFetcher:
    """Downloads media under these limits. Close it when done."""
    return MediaFetcher(limits)


def create_item_encoder(
    folder: Path,
    *,
    limits: MediaLimits,
    device: str,
    max_preparing: int = 2,
    on_batch: Callable[[BatchReport], None] | None = None,
) -> ItemEncoder:
    """The encoders of a checkpoint, ready to use. max_preparing: pictures decoded at once. on_batch: is told of
    each batch. Raises ValueError for missing or unexpected tensors.
    """
    load_codecs()
    config = _config(folder)
    # A CPU multiplies float32 several times faster than bfloat16; the decoder takes either.
    dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    source = CheckpointFolder(folder)
    image_encoder = create_image_encoder(config, source, dtype, device)
    audio_encoder = None
    if _hears(folder, config):
        audio_encoder = create_audio_encoder(config, source, *open_audio_tokenizer(folder), dtype, device)
    return ItemEncoder(
        ImagePipeline(image_encoder, ImageSettings.from_config(config), limits),
        MediaEncoder(image_encoder, audio_encoder, config, limits),
        AudioSettings.from_config(config),
        BatchedEncoders(image_encoder, audio_encoder, staging=staging_for(device), on_batch=on_batch),
        max_preparing=max_preparing,
    )


def decoding_config(folder: Path) -> dict[str, Any]:
    """What `MediaDecoder` needs to decode videos and sounds as the checkpoint wants them."""
    config = _config(folder)
    if not _hears(folder, config):
        config.pop("audio_config", None)
    return config


def create_chat_service(
    folder: Path,
    *,
    model_name: str,
    backend: Backend,
    fetcher: Fetcher,
    chat_limits: ChatLimits,
    media_limits: MediaLimits,
    recorder: Recorder = NO_RECORDER,
) -> ChatService:
    """A chat service for the checkpoint, over the given backend. recorder: is told what happens to requests."""
    return ChatService(
        model_name=model_name,
        prompter=FolderPrompter(folder),
        fetcher=fetcher,
        backend=backend,
        token_texts=TokenizerTexts.from_folder(folder),
        limits=chat_limits,
        media_limits=media_limits,
        recorder=recorder,
    )


def system_fingerprint(folder: Path) -> str:
    """Changes when the checkpoint's configuration, tokenizer or the size of its weights does."""
    digest = blake3()
    audio_tokenizer = folder / AUDIO_TOKENIZER_FOLDER
    texts = [folder / name for name in ("config.json", "tokenizer.json", "chat_template.jinja")]
    for path in (*texts, audio_tokenizer / "config.json"):
        digest.update(path.read_bytes() if path.is_file() else b"")
    for path in sorted((*folder.glob("*.safetensors"), *audio_tokenizer.glob("*.safetensors"))):
        digest.update(f"{path.relative_to(folder)}:{path.stat().st_size};".encode())
    return f"fp_{digest.hexdigest()[:16]}"


def _hears(folder: Path, config: Mapping[str, Any]) -> bool:
    """Sound takes two sets of weights, and a checkpoint without the tokenizer's still sees."""
    return "audio_config" in config and (folder / AUDIO_TOKENIZER_FOLDER).is_dir()


def _config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config
