"""Parts that plugins bring: routes beside the server's own, and tasks beside the card's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Match, WebSocketRoute

from fastvideo_core.card import ModelCard
from fastvideo_core.cli.setup import Setup
from fastvideo_core.deploy.deployment import check_sections
from fastvideo_core.errors import ConfigError, PluginError, describe_failure
from fastvideo_core.extend.base import ServerPartSpec
from fastvideo_core.extend.collect import Brought
from fastvideo_core.extend.extensions import NO_EXTENSIONS, Extensions, resolve_plugin_ref
from fastvideo_core.runtime.samplers import with_samplers
from fastvideo_core.runtime.serving import ServedJob, ServerPart, Wanted
from fastvideo_server.config import ServerConfig
from fastvideo_server.http.parts import Parts, identify
from fastvideo_server.jobs.asks import Ask
from fastvideo_server.jobs.live import LiveJob

__all__ = ["Plugged", "add_routes", "make_parts"]


class _Host:
    """The server as a part sees it; see `fastvideo_core.runtime.serving.ServerHost`."""

    def __init__(self, config: ServerConfig, card: ModelCard, extensions: Extensions, section: Any, name: str) -> None:
        self.card = card
        self.extensions = extensions
        self.section = section
        self.folder = config.folder / "parts" / name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.max_body = int(config.max_body)
        self.max_image_pixels = config.max_image_pixels
        self._parts: Parts | None = None

    def connect(self, parts: Parts) -> None:
        """Take note of the server; nothing is asked of a part before."""
        self._parts = parts

    def identify(self, connection: Any) -> str:
        """Return who opens a connection."""
        return identify(connection, self._server.keys, connection.headers.get("authorization")).name

    async def begin(self, wanted: Sequence[Wanted], owner: str) -> Sequence[ServedJob]:
        """Accept requests; all or none."""
        asks = [Ask(_prompt(one), one.request.task, request=one.request, weights=one.weights) for one in wanted]
        return await self._server.service.begin(asks, self._server.keys.named(owner))

    def cancel(self, jobs: Sequence[ServedJob], reason: str) -> None:
        """Cancel those that have not ended."""
        self._server.service.drop([job for job in jobs if isinstance(job, LiveJob)], reason)

    @property
    def _server(self) -> Parts:
        assert self._parts is not None, "a part is asked nothing before there is a server"
        return self._parts


@dataclass(frozen=True, slots=True)
class Plugged:
    """Parts that are made, and do not know the server yet.

    Attributes:
        made: The parts.
        hosts: What they know of the server.
    """

    made: tuple[ServerPart, ...]
    hosts: tuple[_Host, ...]

    def connect(self, parts: Parts) -> Parts:
        """Return the server with its parts, whose tasks it offers from then on."""
        for host in self.hosts:
            host.connect(parts)
        for part in self.made:
            parts.service.preparer.offers.update(part.tasks)
        return replace(parts, plugged=self.made)


def make_parts(config: ServerConfig, card: ModelCard, setup: Setup) -> Plugged:
    """Make the parts of the plugins that are on; before weights are read, so that what is wrong is told at once.

    Args:
        config: The server's settings.
        card: The card that it will serve.
        setup: What the deploy config says.

    Raises:
        PluginError: A part cannot be made, or offers a task of a name that is taken.
        ConfigError: A section is not allowed.
    """
    extensions = setup.extensions(card) or NO_EXTENSIONS
    sections = {} if setup.deployment is None else check_sections(setup.deployment.resolved, extensions.registry)
    served = with_samplers(card, extensions)
    taken: set[str] = set(card.capabilities.tasks)
    hosts, made = [], []
    for name, brought in extensions.server_parts.items():
        host = _Host(config, served, extensions, sections.get(brought.spec.section or ""), name)
        part = _make(brought, host)
        if doubled := sorted(part.tasks.keys() & taken):
            raise PluginError(f"{brought.plugin} offers tasks whose names are taken: {', '.join(doubled)}")
        taken |= part.tasks.keys()
        hosts.append(host)
        made.append(part)
    return Plugged(tuple(made), tuple(hosts))


def add_routes(app: Starlette, made: Sequence[ServerPart]) -> None:
    """Put the parts' routes beside the application's own.

    Raises:
        PluginError: Two have one path.
    """
    for part in made:
        if doubled := sorted(route.path for route in part.routes if _is_answered(app, route)):
            raise PluginError(f"a part of the server has routes that are there already: {', '.join(doubled)}")
        app.router.routes.extend(part.routes)


def _is_answered(app: Starlette, route: Any) -> bool:
    """Whether an application answers at a route's path already."""
    kind = "websocket" if isinstance(route, WebSocketRoute) else "http"
    scope = {"type": kind, "path": route.path, "root_path": "", "method": "GET", "headers": [], "path_params": {}}
    return any(one.matches(scope)[0] is not Match.NONE for one in app.routes)


def _make(brought: Brought[ServerPartSpec], host: _Host) -> ServerPart:
    make = resolve_plugin_ref(brought.plugin, brought.spec)
    try:
        part = make(host)
    except (ConfigError, PluginError):
        raise
    except Exception as error:
        raise PluginError(f"{brought.plugin}: {brought.spec.name} cannot be made: {describe_failure(error)}") from error
    if not isinstance(part, ServerPart):
        raise PluginError(f"{brought.plugin}: {brought.spec.name} gave a {type(part).__name__}; allowed: ServerPart")
    return part


def _prompt(wanted: Wanted) -> str:
    return str(getattr(wanted.request.part("prompt"), "text", ""))
