"""From a session's events to what goes over the wire: a description as JSON, and for media the bytes that it is of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fastvideo_core.request.events import MediaChunk, MediaInit
from fastvideo_core.request.media.fragments import CODEC, FragmentEncoder

__all__ = ["Segment", "SegmentWriter"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A description, and the bytes that follow it.

    Attributes:
        fields: The event's, and `mime` where a stream begins.
        data: An init segment or a fragment; None for an event without one.
        end_s: Where in the stream it ends, for what a viewer sees.
    """

    fields: dict[str, Any]
    data: bytes | None = None
    end_s: float | None = None

    def message(self, number: int) -> str:
        """Return the description as it is sent."""
        return json.dumps({**self.fields, "number": number, "num_bytes": len(self.data or b"")})


class SegmentWriter:
    """Makes the segments of one session. Its stream of media begins at its first chunk, wherever that is in time."""

    def __init__(self) -> None:
        self._encoder: FragmentEncoder | None = None
        self._init: MediaInit | None = None

    def segments(self, event: Any) -> list[Segment]:
        """Return what an event comes to; encodes its frames, so not on an event loop.

        Raises:
            ExecutionError: The codec failed.
        """
        if isinstance(event, MediaInit):  # what it is in bytes is known with the first frames
            self._init = event
            self._encoder = FragmentEncoder(height=event.height, width=event.width, fps=event.fps)
            return []
        if not isinstance(event, MediaChunk) or event.is_preview:
            return [Segment(event.model_dump(mode="json"))]
        assert self._encoder is not None, "a stream is announced before its first chunk"
        fragment = Segment(event.model_dump(mode="json"), self._encoder.encode(event.data.numpy()), event.end_s)
        return [*self._beginning(self._encoder.init), fragment]

    def _beginning(self, data: bytes) -> list[Segment]:
        init, self._init = self._init, None
        if init is None:
            return []
        fields = {**init.model_dump(mode="json"), "codec": CODEC, "mime": f'video/mp4; codecs="{_codec(data)}"'}
        return [Segment(fields, data)]


def _codec(init: bytes) -> str:
    """Return the codec as browsers ask for it, `avc1.64000a`: profile, constraints and level of an init segment.

    Source: RFC 6381, section 3.3, and ISO/IEC 14496-15, section 5.3.3.1.
    """
    at = init.index(b"avcC") + len(b"avcC") + 1
    return f"avc1.{init[at : at + 3].hex()}"
