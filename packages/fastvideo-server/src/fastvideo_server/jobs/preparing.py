"""From what somebody asks for to what the engine runs: all that can be checked before it is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastvideo_core.cli.setup import Setup
from fastvideo_core.errors import FastVideoError, InputError
from fastvideo_core.request.media.output import check_video_fits
from fastvideo_core.request.media.rates import as_fps
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.host import check_request
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_server.errors import api_error
from fastvideo_server.jobs.asks import Ask, build

__all__ = ["Preparer"]


class Preparer:
    """Checks requests for an engine.

    Args:
        engine: The engine.
        setup: What the deploy config says of its card.
        max_image_pixels: Most pixels of an input image.
    """

    def __init__(self, engine: Engine, setup: Setup, max_image_pixels: int) -> None:
        self._engine = engine
        self._setup = setup
        self._max_image_pixels = max_image_pixels

    def prepare(self, ask: Ask, *, request_id: str) -> tuple[PreparedRequest, tuple[str, ...]]:
        """Check all that can be checked of a request, on a thread of its own; return its warnings too.

        Raises:
            ApiError: Something asked for is not allowed.
        """
        card = self._engine.card
        request = build(card, ask, request_id=request_id, max_image_pixels=self._max_image_pixels)
        try:
            prepared = prepare_request(
                card,
                request,
                deploy=self._setup.parameters(card, request.task),
                extensions=self._setup.extensions(card),
            )
            warnings = check_request(prepared, self._engine.instance.view)
            _check_file(prepared.parameters)
        except InputError as error:
            if error.field == "image":
                error.field = "input_reference"
            raise api_error(error) from error
        except FastVideoError as error:
            raise api_error(error) from error
        return prepared, warnings


def _check_file(parameters: Mapping[str, Any]) -> None:
    """Refuse a size that no video file of ours holds."""
    if {"height", "width", "fps"} <= parameters.keys():
        check_video_fits(
            ".mp4", height=parameters["height"], width=parameters["width"], fps=as_fps(parameters["fps"]), field="size"
        )
