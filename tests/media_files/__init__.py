"""Small media files of every troublesome kind, made with PyAV's encoders, and what is true about each.

`VIDEO_FILES` and `SOUND_FILES` hold a builder for each file that has one right reading; the modules hold the rest.
"""

from tests.media_files import damage, pixels, sound, streams, timing
from tests.media_files.files import SOUND_FILES, VIDEO_FILES, SoundFile, VideoFile

__all__ = [
    "SOUND_FILES",
    "VIDEO_FILES",
    "SoundFile",
    "VideoFile",
    "damage",
    "pixels",
    "sound",
    "streams",
    "timing",
]
