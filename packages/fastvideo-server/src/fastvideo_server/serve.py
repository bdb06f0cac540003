"""A server from its settings: folder, engine, jobs, application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from fastvideo_core.card import ModelCard
from fastvideo_core.cli.setup import Setup
from fastvideo_core.runtime.allocator import keep_freed_memory
from fastvideo_core.runtime.durable import StateStore
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_server.config import ServerConfig
from fastvideo_server.http.parts import Parts
from fastvideo_server.http.plugged import make_parts
from fastvideo_server.jobs.artifacts import ArtifactFolder, ArtifactStore
from fastvideo_server.jobs.database import JobDatabase
from fastvideo_server.jobs.health import Health
from fastvideo_server.jobs.quotas import Keys
from fastvideo_server.jobs.service import JobService, Shelf
from fastvideo_server.jobs.sqlite import SqliteDatabase
from fastvideo_server.metrics import Metrics
from fastvideo_server.sessions.service import SessionService
from fastvideo_server.watch import SchedulerWatch

__all__ = ["open_parts"]


@contextmanager
def open_parts(
    config: ServerConfig,
    card: ModelCard,
    *,
    setup: Setup | None = None,
    device: str = "auto",
    precision: str | None = None,
    options: RuntimeOptions | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[Parts]:
    """Load a card and put a server together around it; all of it is closed at the end.

    Args:
        config: Settings.
        card: The card.
        setup: What the deploy config says of it.
        device: Where it runs.
        precision: Number format; None takes the card's.
        options: How the engine runs; None takes the deploy config's.
        on_progress: Told the bytes of a download, done and in all.

    Raises:
        StateError: The folder, or the database, is another process's, or another thing's.
        CheckpointError: Weights are missing or broken.
        ResourceError: They do not fit, or a database or a store cannot be reached.
        PluginError: A part that a plugin brings cannot be made.
    """
    chosen = setup or Setup()
    metrics = Metrics()
    watch = SchedulerWatch(metrics.called)
    runtime = options or chosen.runtime_options() or RuntimeOptions()
    keep_freed_memory()
    plugged = make_parts(config, card, chosen)
    with ExitStack() as stack:
        store = stack.enter_context(StateStore(config.folder / "state"))
        database = _database(config)
        stack.callback(database.close)
        shelf = Shelf(store, database, _artifacts(config))
        engine = stack.enter_context(
            Engine.open(
                card,
                device=device,
                precision=precision,
                options=replace(runtime, log=watch),
                store=store,
                extensions=chosen.extensions(card),
                on_progress=on_progress,
            )
        )
        keys = Keys(config)
        service = JobService(
            engine, shelf, config, keys, metrics, setup=chosen, max_running=runtime.scheduler.max_running
        )
        sessions = SessionService(service, config, keys, metrics)
        yield plugged.connect(Parts(config, service, sessions, keys, metrics, Health(service, watch), watch))


def _database(config: ServerConfig) -> JobDatabase:
    if config.database is None:
        return SqliteDatabase(config.folder / "jobs.sqlite3")
    from fastvideo_server.jobs.postgres import PostgresDatabase

    return PostgresDatabase(config.database)


def _artifacts(config: ServerConfig) -> ArtifactStore:
    if config.artifacts is None:
        return ArtifactFolder(config.folder / "artifacts")
    from fastvideo_server.jobs.remote import RemoteArtifacts

    return RemoteArtifacts(config.artifacts, config.artifact_options, config.folder / "uploads")
