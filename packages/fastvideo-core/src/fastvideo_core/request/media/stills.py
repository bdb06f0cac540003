"""Single images as files, with their provenance inside: a PNG text chunk, or the EXIF description."""

from __future__ import annotations

import io

from PIL import Image, PngImagePlugin

from fastvideo_core.request.media.pixels import Frames
from fastvideo_core.request.provenance import Provenance

__all__ = ["EXIF_DESCRIPTION", "PNG_KEY", "encode_still"]

PNG_KEY = "fastvideo"
EXIF_DESCRIPTION = 0x010E
# EXIF in a JPEG file ends at 64 KiB; what does not fit stands in the sidecar.
_MAX_EXIF_TEXT = 60_000


def encode_still(image_HWC: Frames, suffix: str, provenance: Provenance | None) -> bytes:
    """Return an image file.

    Args:
        image_HWC: uint8 array (H, W, 3).
        suffix: `.png`, `.jpg`, `.jpeg` or `.webp`; the last is lossless.
        provenance: Goes into the file's metadata.
    """
    image = Image.fromarray(image_HWC)
    buffer = io.BytesIO()
    if suffix == ".png":
        image.save(buffer, format="PNG", compress_level=4, pnginfo=_png_text(provenance))
    elif suffix == ".webp":
        image.save(buffer, format="WEBP", lossless=True, exif=_exif(provenance))
    else:
        # Full colour resolution: saturated edges smear otherwise.
        image.save(buffer, format="JPEG", quality=95, subsampling=0, exif=_exif(provenance))
    return buffer.getvalue()


def _png_text(provenance: Provenance | None) -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    if provenance is not None:
        if provenance.title:
            info.add_itxt("Title", provenance.title)
        info.add_itxt(PNG_KEY, provenance.to_json())
    return info


def _exif(provenance: Provenance | None) -> Image.Exif:
    exif = Image.Exif()
    text = provenance.to_json() if provenance is not None else ""
    if text and len(text) <= _MAX_EXIF_TEXT:
        exif[EXIF_DESCRIPTION] = text
    return exif
