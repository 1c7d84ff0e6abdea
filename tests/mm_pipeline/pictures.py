"""Makes encoded test pictures in memory."""

import io

import numpy as np
from PIL import Image


def gradient(width: int = 64, height: int = 48) -> np.ndarray:
    """uint8 [height, width, 3], every corner different."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    channels = (255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), 255 * (x + y) / (width + height))
    return np.stack(channels, axis=-1).astype(np.uint8)


def noisy(width: int = 64, height: int = 48, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(0, 20, (height, width, 3))
    return np.clip(gradient(width, height) + noise, 0, 255).astype(np.uint8)


def encode(pixels: np.ndarray | Image.Image, kind: str = "PNG", **options) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()
