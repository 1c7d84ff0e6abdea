"""Still images: bytes to pixels to patches. Knows no encoder."""

from mm_pipeline.image.decode import decode_image, load_codecs
from mm_pipeline.image.preprocess import ImageInput, preprocess_image
from mm_pipeline.image.settings import ImageSettings
from mm_pipeline.pixels import smart_resize

__all__ = ["ImageInput", "ImageSettings", "decode_image", "load_codecs", "preprocess_image", "smart_resize"]
