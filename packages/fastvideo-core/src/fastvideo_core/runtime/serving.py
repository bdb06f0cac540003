"""What a server and the parts that plugins bring to it know of each other.

A part adds routes beside the server's own, and tasks beside the card's. It is made by the implementation of a
`fastvideo_core.extend.ServerPartSpec`, a function that takes a `ServerHost` and returns a `ServerPart`. Routes are
objects of Starlette, which core does not import; errors of `fastvideo_core.errors` that they raise are answered as the
server answers its own.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fastvideo_core.card import ModelCard, TaskSpec
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.request.base import Request
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.patches import WeightPatch
from fastvideo_core.runtime.run import GenerationResult

__all__ = ["OfferedTask", "ServedCall", "ServedJob", "ServerHost", "ServerPart", "Wanted", "WeightStack"]


@dataclass(frozen=True, slots=True)
class WeightStack:
    """Changes of weights that a job runs under.

    Attributes:
        key: Names them; jobs with one key run beside each other.
        make: Makes the changes, by component; called on a thread of its own, once the engine runs nothing else.
    """

    key: str
    make: Callable[[ModelInstance], Mapping[str, WeightPatch]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that a part wants to be run.

    Attributes:
        request: The request, of a task of the card; the server gives it an id.
        weights: Changes of weights that it runs under; None runs on the card's own.
    """

    request: Request
    weights: WeightStack | None = None


@dataclass(frozen=True, slots=True)
class ServedCall:
    """A call of an offered task.

    Attributes:
        owner: Name of the key that calls.
        parameters: What was given, checked against the task's parameters; what was left out is not there.
        image: Bytes of the input image's file; None without one.
    """

    owner: str
    parameters: Mapping[str, Any]
    image: bytes | None = None


@dataclass(frozen=True, slots=True)
class OfferedTask:
    """A task that a part offers beside the card's own: listed with them, and called like them.

    Attributes:
        spec: Inputs, outputs and parameters. An input `image` is the call's image; the other inputs are parameters.
        build: Makes the request of a call, on a thread of its own; raises an `InputError` for what is not allowed.
        weights: Tells what changes of weights a call runs under, from its parameters; for a job that goes on in another
            process too.
        version: Version of the task.
    """

    spec: TaskSpec
    build: Callable[[ServedCall], Request]
    weights: Callable[[ServedCall], WeightStack | None] = lambda call: None  # noqa: ARG005 - on the card's own weights
    version: str = "1"


class ServedJob(Protocol):
    """A job in progress; used on the server's event loop alone."""

    result: GenerationResult | None
    error: Exception | None
    ended: asyncio.Event

    @property
    @abstractmethod
    def job_id(self) -> str:
        """Its id."""

    @abstractmethod
    def next_change(self) -> asyncio.Event:
        """Return what is set at the next change; taken before `events`, so that nothing falls in between."""

    @abstractmethod
    def events(self, after: int = -1) -> list[Any]:
        """Return the events beyond a number."""


class ServerHost(Protocol):
    """The server, as a part sees it.

    Attributes:
        card: The card that is served, with the samplers of plugins that are on.
        extensions: What is on.
        section: The plugin's section of the deploy config, an object of its model; None where nothing is said.
        folder: A folder of the part's own, which is there.
        max_body: Most bytes of a body; the server itself refuses larger ones.
        max_image_pixels: Most pixels of an input image.
    """

    card: ModelCard
    extensions: Extensions
    section: Any
    folder: Path
    max_body: int
    max_image_pixels: int

    @abstractmethod
    def identify(self, connection: Any) -> str:
        """Return who opens a connection: the name of its key, or of everybody where there are none.

        Args:
            connection: A Starlette request or WebSocket.

        Raises:
            FastVideoError: 401, no key or a wrong one; raised in a route, it is the answer.
        """

    @abstractmethod
    async def begin(self, wanted: Sequence[Wanted], owner: str) -> Sequence[ServedJob]:
        """Accept requests; all or none. They do not outlive the process.

        Raises:
            FastVideoError: Why they are not accepted.
        """

    @abstractmethod
    def cancel(self, jobs: Sequence[ServedJob], reason: str) -> None:
        """Cancel those that have not ended: waiting ones at once, running ones at their next step."""


@dataclass(frozen=True, slots=True)
class ServerPart:
    """What a part adds.

    Attributes:
        routes: Starlette's routes.
        tasks: Tasks by name; a name of the card's own is an error.
        close: Called on the event loop when the server stops, before its jobs are ended.
    """

    routes: Sequence[Any] = ()
    tasks: Mapping[str, OfferedTask] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
