"""Parts that plugins bring: routes beside the server's own, and tasks beside the card's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Match, WebSocketRoute

from fastvideo_core.cli.setup import Setup
from fastvideo_core.deploy.deployment import check_sections
from fastvideo_core.errors import ConfigError, PluginError, describe_failure
from fastvideo_core.extend.base import ServerPartSpec
from fastvideo_core.extend.collect import Brought
from fastvideo_core.extend.extensions import NO_EXTENSIONS, Extensions, resolve_plugin_ref
from fastvideo_core.runtime.serving import OfferedTask, ServedJob, ServerPart, Wanted
from fastvideo_server.http.parts import Parts, identify
from fastvideo_server.jobs.asks import Ask
from fastvideo_server.jobs.live import LiveJob

__all__ = ["add_routes", "load_parts"]


class _Host:
    """The server as a part sees it; see `fastvideo_core.runtime.serving.ServerHost`."""

    def __init__(self, parts: Parts, extensions: Extensions, section: Any, folder: Path) -> None:
        self.card = parts.service.card
        self.extensions = extensions
        self.section = section
        self.folder = folder
        self.max_body = int(parts.config.max_body)
        self.max_image_pixels = parts.config.max_image_pixels
        self._parts = parts

    def identify(self, connection: Any) -> str:
        """Return who opens a connection."""
        return identify(connection, self._parts.keys, connection.headers.get("authorization")).name

    async def begin(self, wanted: Sequence[Wanted], owner: str) -> Sequence[ServedJob]:
        """Accept requests; all or none."""
        asks = [Ask(_prompt(one), one.request.task, request=one.request, weights=one.weights) for one in wanted]
        return await self._parts.service.begin(asks, self._parts.keys.named(owner))

    def cancel(self, jobs: Sequence[ServedJob], reason: str) -> None:
        """Cancel those that have not ended."""
        self._parts.service.drop([job for job in jobs if isinstance(job, LiveJob)], reason)


def load_parts(parts: Parts, setup: Setup) -> tuple[ServerPart, ...]:
    """Make the parts of the plugins that are on; the tasks that they offer are the server's from then on.

    Raises:
        PluginError: A part cannot be made, or has the name of a task that is there.
        ConfigError: A section is not allowed.
    """
    extensions = setup.extensions(parts.service.card) or NO_EXTENSIONS
    sections = {} if setup.deployment is None else check_sections(setup.deployment.resolved, extensions.registry)
    offers, made = parts.service.preparer.offers, []
    for name, brought in extensions.server_parts.items():
        folder = parts.config.folder / "parts" / name
        folder.mkdir(parents=True, exist_ok=True)
        host = _Host(parts, extensions, sections.get(brought.spec.section or ""), folder)
        part = _make(brought, host)
        _check_tasks(brought, part.tasks, {**parts.service.card.capabilities.tasks, **offers})
        offers.update(part.tasks)
        made.append(part)
    return tuple(made)


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


def _check_tasks(brought: Brought[ServerPartSpec], own: Mapping[str, OfferedTask], taken: Mapping[str, Any]) -> None:
    if doubled := sorted(own.keys() & taken.keys()):
        raise PluginError(f"{brought.plugin} offers tasks whose names are taken: {', '.join(doubled)}")


def _prompt(wanted: Wanted) -> str:
    return str(getattr(wanted.request.part("prompt"), "text", ""))
