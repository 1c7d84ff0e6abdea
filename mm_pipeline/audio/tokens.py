"""How many language-model tokens a sound takes. Counts only; pure integers."""

from __future__ import annotations

from mm_pipeline.audio.settings import AudioSettings


def num_mel_frames(num_samples: int, settings: AudioSettings) -> int:
    """Frames of a waveform of `num_samples` > 0 samples at the settings' rate: one every hop, both ends
    included.
    """
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}; a waveform has at least one sample")
    return num_samples // settings.hop_length + 1


def audio_tokens(num_frames: int, settings: AudioSettings) -> int:
    """Tokens the encoder makes of `num_frames` > 0 mel frames.

    Each segment of `segment_frames` goes through a strided convolution and pooling on its own; the code rows
    of all segments are then grouped together (MiMo's audio tokenizer and `audio_config.group_size`).
    """
    if num_frames < 1:
        raise ValueError(f"num_frames is {num_frames}; a sound has at least one frame")
    whole, rest = divmod(num_frames, settings.segment_frames)
    rows = whole * _code_rows(settings.segment_frames, settings)
    if rest:
        rows += _code_rows(rest, settings)
    return -(-rows // settings.group_size)


def _code_rows(num_frames: int, settings: AudioSettings) -> int:
    convolved = (num_frames - 1) // settings.conv_stride + 1
    return -(-convolved // settings.pool_size)
