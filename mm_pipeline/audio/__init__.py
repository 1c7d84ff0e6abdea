"""Sound: bytes to a mono waveform to log-mel segments. Knows no encoder."""

from mm_pipeline.audio.decode import AudioReport, AudioStream, decode_audio
from mm_pipeline.audio.mel import LogMelStream, log_mel
from mm_pipeline.audio.probe import AudioInfo, NoSoundError, probe_audio
from mm_pipeline.audio.segments import MelSegments, mel_segments
from mm_pipeline.audio.settings import AudioSettings
from mm_pipeline.audio.tokens import audio_tokens, num_mel_frames

__all__ = [
    "AudioInfo",
    "AudioReport",
    "AudioSettings",
    "AudioStream",
    "LogMelStream",
    "MelSegments",
    "NoSoundError",
    "audio_tokens",
    "decode_audio",
    "log_mel",
    "mel_segments",
    "num_mel_frames",
    "probe_audio",
]
