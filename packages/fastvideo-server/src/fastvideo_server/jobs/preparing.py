"""From what somebody asks for to what the engine runs: all that can be checked before it is accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastvideo_core.card import ModelCard
from fastvideo_core.cli.setup import Setup
from fastvideo_core.errors import FastVideoError, InputError, LoopMismatchError, StateError
from fastvideo_core.request.base import Request
from fastvideo_core.request.media.output import check_video_fits
from fastvideo_core.request.media.rates import as_fps
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.host import check_request
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_core.runtime.serving import OfferedTask, ServedCall, WeightStack
from fastvideo_core.runtime.sessions.host import stream_task
from fastvideo_server.errors import ApiError, api_error
from fastvideo_server.jobs.asks import Ask, build
from fastvideo_server.jobs.records import JobRecord

__all__ = ["Preparer", "has_streams"]


class Preparer:
    """Checks requests for an engine.

    Args:
        engine: The engine.
        setup: What the deploy config says of its card.
        max_image_pixels: Most pixels of an input image.

    Attributes:
        offers: Tasks that plugins offer beside the card's.
    """

    def __init__(self, engine: Engine, setup: Setup, max_image_pixels: int) -> None:
        self.offers: dict[str, OfferedTask] = {}
        self._engine = engine
        self._setup = setup
        self._max_image_pixels = max_image_pixels

    def prepare(self, ask: Ask, *, request_id: str) -> tuple[PreparedRequest, tuple[str, ...]]:
        """Check all that can be checked of a request, on a thread of its own; return its warnings too.

        Raises:
            ApiError: Something asked for is not allowed.
        """
        card = self._engine.card
        if ask.call is not None:
            ask = replace(ask, request=self._built(ask.task, ask.call))
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

    def weights(self, ask: Ask) -> WeightStack | None:
        """Return the changes of weights that a job runs under, on a thread of its own.

        Raises:
            ApiError: There can be none beside the card's streams, which run on its own weights.
        """
        stack = ask.weights if ask.call is None else self.offers[ask.task].weights(ask.call)
        if stack is not None and has_streams(self._engine.card):
            raise ApiError(
                400, f"adapters are not put on {self._engine.card.model_id}, whose sessions run on its own weights",
                code="unsupported", param="task", allowed="no adapters",
            )  # fmt: skip
        return stack

    def weights_again(self, record: JobRecord) -> WeightStack | None:
        """Return the changes of weights that a job of an earlier process began under.

        Raises:
            StateError: They are not those any more, so that it cannot go on.
        """
        if record.weights is None:
            return None
        offered, stack = self.offers.get(record.task), None
        if offered is not None:
            stack = offered.weights(ServedCall(record.owner, record.asked))
        if stack is None or stack.key != record.weights:
            raise StateError(f"the adapters of task {record.task} are not those that job {record.job_id} began with")
        return stack

    def _built(self, task: str, call: ServedCall) -> Request:
        try:
            return self.offers[task].build(call)
        except FastVideoError as error:
            raise api_error(error) from error


def has_streams(card: ModelCard) -> bool:
    """Whether a card has a task that makes streams."""
    try:
        stream_task(card)
    except LoopMismatchError:
        return False
    return True


def _check_file(parameters: Mapping[str, Any]) -> None:
    """Refuse a size that no video file of ours holds."""
    if {"height", "width", "fps"} <= parameters.keys():
        check_video_fits(
            ".mp4", height=parameters["height"], width=parameters["width"], fps=as_fps(parameters["fps"]), field="size"
        )
