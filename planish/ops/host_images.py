"""The host function that decodes images, by Pillow, which is loaded when it is first used."""
from __future__ import annotations

import io
from typing import Any

import numpy as np

from planish.errors import PlanishError, ShapeError
from planish.ops.host import host_function

MISSING = "decoding images needs the package Pillow: pip install 'planish[images]'"


@host_function("decode_image")
def decode_image(encoded: np.ndarray, *, pixel_format: str) -> np.ndarray:
    """uint8 [height, width, channels] of a file's bytes: RGB, BGR, or Grayscale with one channel.

    Raises PlanishError where Pillow is missing, ShapeError for bytes that are no image.
    """
    image = _opened(encoded.tobytes()).convert("L" if pixel_format == "Grayscale" else "RGB")
    pixels = np.asarray(image, np.uint8)
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return pixels[:, :, ::-1] if pixel_format == "BGR" else pixels


def require_pillow() -> Any:
    """The module PIL.Image. Raises PlanishError with the pip line where it is missing."""
    try:
        from PIL import Image
    except ImportError as error:
        raise PlanishError(MISSING) from error
    return Image


def _opened(data: bytes) -> Any:
    pillow = require_pillow()
    try:
        image = pillow.open(io.BytesIO(data))
        image.load()
        return image
    except (OSError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ShapeError(f"{len(data)} bytes that are no image: {error}") from error
