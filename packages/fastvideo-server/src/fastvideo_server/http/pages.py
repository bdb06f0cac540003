"""The page at `/`: files of the package, which load nothing from anywhere else."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

from fastvideo_server.errors import ApiError

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_TYPES = {"index.html": "text/html", "app.js": "text/javascript", "live.js": "text/javascript", "style.css": "text/css"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self' blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}


@router.get("/")
async def index() -> Response:
    """Send the page."""
    return _page_file("index.html")


@router.get("/page/{name}")
async def page_file(name: str) -> Response:
    """Send a file of the page."""
    return _page_file(name)


def _page_file(name: str) -> Response:
    if name not in _TYPES:
        raise ApiError(404, "the page has no such file", code="not_found", allowed=", ".join(_TYPES))
    data = files("fastvideo_server").joinpath("page", name).read_bytes()
    return Response(data, media_type=f"{_TYPES[name]}; charset=utf-8", headers=_HEADERS)
