"""Runs a program: for each card one model, with its adapters on, and all requests that want it so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastvideo_comfy.adapters import adapter_patch
from fastvideo_comfy.folders import ModelFolders
from fastvideo_comfy.lower.base import CardFinder
from fastvideo_comfy.program import OutputRequest, WorkflowProgram
from fastvideo_comfy.requests import comfy_card, load_extensions, to_request
from fastvideo_comfy.stage import stage_card
from fastvideo_core.errors import CheckpointError, UnknownCardError
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.loading import load_instance
from fastvideo_core.runtime.prepare import PreparedRequest, prepare_request
from fastvideo_core.runtime.run import GenerationResult
from fastvideo_core.runtime.samplers import load_samplers

__all__ = ["Done", "Planned", "RunSettings", "plan_program", "run_plan"]


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Where things are, and where they run.

    Attributes:
        images: ComfyUI's input folder.
        folders: ComfyUI's model folders; None takes the cards' own weights. Adapters are found here alone.
        device: Device, or "auto".
        precision: Number format; None takes the card's.
        tell: Told what is going on, in lines.
    """

    images: Path = field(default_factory=Path)
    folders: ModelFolders | None = None
    device: str = "auto"
    precision: str | None = None
    tell: Callable[[str], None] = lambda line: None  # noqa: ARG005 - says nothing


@dataclass(frozen=True, slots=True)
class Planned:
    """An output that is ready to run.

    Attributes:
        output: The program's request.
        prepared: The runtime's.
        files: Model files by component; none where the card's own weights are taken.
        adapters: Adapter files with their strengths, by component.
    """

    output: OutputRequest
    prepared: PreparedRequest
    files: Mapping[str, Path]
    adapters: Mapping[str, tuple[tuple[Path, float], ...]]

    def shares_model(self, other: Planned) -> bool:
        """Whether both run on the same weights."""
        mine, others = (one.prepared.card.model_id for one in (self, other))
        return mine == others and dict(self.files) == dict(other.files) and dict(self.adapters) == dict(other.adapters)


@dataclass(frozen=True, slots=True)
class Done:
    """An output that has ended: with a result, or with the reason why there is none."""

    planned: Planned
    result: GenerationResult | None
    error: Exception | None


def plan_program(program: WorkflowProgram, settings: RunSettings, find_card: CardFinder) -> list[Planned]:
    """Check everything that can be checked without weights: cards, images, files.

    Raises:
        InputError: An image is not there, or a parameter is not the card's.
        CheckpointError: A model file or an adapter is not there.
    """
    extensions = load_extensions()
    return [_plan_one(program, output, settings, find_card, extensions) for output in program.requests]


def _plan_one(
    program: WorkflowProgram,
    output: OutputRequest,
    settings: RunSettings,
    find_card: CardFinder,
    extensions: Extensions,
) -> Planned:
    found = find_card(output.card)
    if found is None:
        raise UnknownCardError("no such card", field="card", value=output.card)
    card = comfy_card(found, extensions)
    prepared = prepare_request(card, to_request(program, output, card, images=settings.images), extensions=extensions)
    nodes = [program.node(node_id) for node_id in output.components.values()]
    folders = settings.folders
    files = {} if folders is None else {node.component: folders.find(node.folder, node.file) for node in nodes}
    adapters = {}
    for component, uses in program.adapters(output).items():
        if folders is None:
            raise CheckpointError(f"adapter {uses[0].file!r} is in ComfyUI's loras folder, and no folder is given")
        adapters[component] = tuple((folders.find("loras", use.file), use.strength) for use in uses)
    return Planned(output, prepared, files, adapters)


def run_plan(
    plan: Sequence[Planned],
    settings: RunSettings,
    *,
    on_event: Callable[[Any], None] | None = None,
    cancels: Callable[[Callable[[], None]], Any] | None = None,
) -> Iterator[Done]:
    """Run outputs; those that want the same weights run together.

    Args:
        plan: What `plan_program` gave.
        settings: Where it runs.
        on_event: Called with every event of the requests.
        cancels: Makes a context in which the function that it is given is called to cancel everything.

    Raises:
        CheckpointError: Weights or adapters do not fit.
        ResourceError: They do not fit into memory.
    """
    is_cancelled = False
    for group in _groups(plan):
        if is_cancelled:
            return
        with _engine(group[0], settings) as engine, ExitStack() as stack:
            # The card that runs has ComfyUI's files, and is in all else the one that was asked.
            requests = [replace(one.prepared, card=engine.card) for one in group]
            handles = [engine.submit_prepared(request, on_event=on_event) for request in requests]

            def cancel(handles: Sequence[Any] = tuple(handles)) -> None:
                nonlocal is_cancelled
                is_cancelled = True
                for handle in handles:
                    handle.cancel("interrupted")

            if cancels is not None:
                stack.enter_context(cancels(cancel))
            for one, handle in zip(group, handles, strict=True):
                yield _collect(one, handle)


def _groups(plan: Sequence[Planned]) -> list[list[Planned]]:
    """Return outputs by the weights that they run on, in the order of the plan."""
    groups: list[list[Planned]] = []
    for one in plan:
        same = next((group for group in groups if group[0].shares_model(one)), None)
        if same is None:
            groups.append([one])
        else:
            same.append(one)
    return groups


def _collect(planned: Planned, handle: Any) -> Done:
    try:
        return Done(planned, handle.result(), None)
    except Exception as error:  # noqa: BLE001 - one output's error, of whatever kind, ends that output alone
        return Done(planned, None, error)


@contextmanager
def _engine(planned: Planned, settings: RunSettings) -> Iterator[Engine]:
    """Return an engine on the weights of one group, adapters on; afterwards they are off again."""
    extensions = load_extensions()
    with ExitStack() as stack:
        card = planned.prepared.card
        if planned.files:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="fastvideo-comfy-")))
            card = stage_card(card, planned.files, folder)
        settings.tell(f"loading {card.model_id}")
        instance = load_instance(
            card,
            device=settings.device,
            precision=settings.precision,
            tasks=(planned.prepared.request.task,),
            on_read=lambda report: settings.tell(f"loaded {report.short()}"),
            samplers=load_samplers(extensions),
        )
        engine = stack.enter_context(Engine(instance))
        for component, uses in planned.adapters.items():
            stack.enter_context(_patched(engine, component, uses, settings))
        yield engine


@contextmanager
def _patched(
    engine: Engine, component: str, uses: Sequence[tuple[Path, float]], settings: RunSettings
) -> Iterator[None]:
    """Put adapters on a component for as long as the context is open, and tell what it took."""

    def tell(line: str) -> None:
        settings.tell(f"adapters on {component}: {line}")

    patch = adapter_patch(engine.instance.component(component), uses, family=engine.card.family, tell=tell)
    on = engine.patch_weights(component, patch)
    settings.tell(f"adapters put on {component} in {on.seconds:.3g} s ({on.predicted_s:.3g} s predicted)")
    try:
        yield
    finally:
        off = engine.unpatch_weights(component)
        settings.tell(f"{component} restored in {off.seconds:.3g} s ({off.predicted_s:.3g} s predicted)")
