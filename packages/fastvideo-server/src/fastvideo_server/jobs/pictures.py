"""Pictures of a job that runs, small enough to go along with its events; made once for however many look on."""

from __future__ import annotations

import asyncio
import base64
import io
from typing import Any

import numpy as np
from PIL import Image

from fastvideo_core.request.events import MediaChunk

__all__ = ["MAX_EDGE", "Pictures"]

MAX_EDGE = 512
"""Most pixels of a picture's longer edge."""
_MAX_KEPT = 8


class Pictures:
    """The pictures of one job. Used on the server's event loop alone."""

    def __init__(self) -> None:
        self._made: dict[int, asyncio.Future[str]] = {}

    async def of(self, event: MediaChunk) -> str:
        """Return the picture that a preview brings, as a data URL.

        Args:
            event: The preview, whose frames are there.
        """
        if event.sequence not in self._made:
            self._made[event.sequence] = asyncio.ensure_future(asyncio.to_thread(_encode, event.data))
            for old in sorted(self._made)[:-_MAX_KEPT]:
                del self._made[old]
        return await asyncio.shield(self._made[event.sequence])


def _encode(frames_THWC: Any) -> str:
    image = Image.fromarray(np.asarray(frames_THWC)[0])
    image.thumbnail((MAX_EDGE, MAX_EDGE))
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
