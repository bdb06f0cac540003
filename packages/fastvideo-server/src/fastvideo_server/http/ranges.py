"""Files in answers, whole or in part, as players and download managers ask for them.

Source: RFC 9110, sections 13 and 14.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from typing import BinaryIO

from starlette.responses import Response, StreamingResponse

from fastvideo_server.errors import ApiError
from fastvideo_server.jobs.artifacts import StoredFile

__all__ = ["file_response", "parse_range"]

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
_CHUNK_BYTES = 256 << 10


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first and the last byte that a `Range` header asks for; None where the whole is to be sent.

    Several ranges at once, and what is no range of bytes, may be answered with the whole, and are.

    Raises:
        ApiError: 416, there is no such part.
    """
    found = _RANGE.fullmatch(header.strip())
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size - 1
    else:
        start, end = int(first), min(int(last or size - 1), size - 1)
        if last and int(last) < start:
            return None
    if start > end:
        raise ApiError(
            416, f"there are no such bytes of {size}", code="range_not_satisfiable", param="Range",
            allowed=f"bytes=0-{size - 1}", headers={"Content-Range": f"bytes */{size}"},
        )  # fmt: skip
    return start, end


def file_response(file: StoredFile, media_type: str, *, name: str, headers: Mapping[str, str]) -> Response:
    """Answer with a file that never changes.

    Args:
        file: The file.
        media_type: What it is.
        name: What a browser calls it on the disk.
        headers: Of the request.

    Raises:
        ApiError: 416, there is no such part.
    """
    size, tag = file.num_bytes, f'"{file.tag}"'
    common = {
        "ETag": tag,
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, max-age=86400, immutable",
        "Content-Disposition": f'inline; filename="{name}"',
    }
    if headers.get("if-none-match", "") == tag:
        return Response(status_code=304, headers=common)
    part = None
    if (asked := headers.get("range")) is not None and headers.get("if-range", tag) == tag:
        part = parse_range(asked, size)
    start, end = part or (0, size - 1)
    common["Content-Length"] = str(end - start + 1)
    if part is not None:
        common["Content-Range"] = f"bytes {start}-{end}/{size}"
    body = _read(file, start, end - start + 1)
    return StreamingResponse(body, 206 if part is not None else 200, headers=common, media_type=media_type)


async def _read(file: StoredFile, start: int, count: int) -> AsyncIterator[bytes]:
    with await _opened(file) as opened:
        await asyncio.to_thread(opened.seek, start)
        while count > 0 and (data := await asyncio.to_thread(opened.read, min(_CHUNK_BYTES, count))):
            count -= len(data)
            yield data


async def _opened(file: StoredFile) -> BinaryIO:
    """Open a file on a thread; if the reader has gone by the time it is open, close it again."""
    opening = asyncio.ensure_future(asyncio.to_thread(file.open))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Future[BinaryIO]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
