"""The host side of a card: its parts without weights, and the checks of requests that need no more than these.

A prompt's length in tokens is known once the tokenizer is there: no weights need be fetched or read for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.loop.base import InputCheck, ModelView
from fastvideo_core.program.base import ModelLoopNode
from fastvideo_core.runtime.failures import as_failure
from fastvideo_core.runtime.instance import InstanceView, LoadedComponent
from fastvideo_core.runtime.loading import load_components, resolve_device, resolve_precision
from fastvideo_core.runtime.prepare import PreparedRequest, known_inputs
from fastvideo_core.runtime.weights.hub import HubAccess
from fastvideo_core.runtime.weights.needs import HOST_KINDS

__all__ = ["HostSide", "check_request", "load_host"]


class HostSide:
    """The parts of a card that its loops' checks need.

    Args:
        card: The card.
        components: These parts, by name.
        precision: Number format that the weights will run in.
    """

    def __init__(self, card: ModelCard, components: Mapping[str, LoadedComponent], *, precision: str) -> None:
        self.components = dict(components)
        self._view = InstanceView(card, card.model_id, components, precision=precision, weights_version="")

    def check(self, prepared: PreparedRequest) -> tuple[str, ...]:
        """Check a request; see `check_request`."""
        return check_request(prepared, self._view)


def check_request(prepared: PreparedRequest, view: ModelView) -> tuple[str, ...]:
    """Let the loops of a request check it.

    Args:
        prepared: The request.
        view: The model; components without weights are enough.

    Returns:
        Warnings, each once: what is allowed and yet will not give what was asked for.

    Raises:
        InputError: A check's own error.
        ExecutionError: A check itself fails.
    """
    warnings: list[str] = []
    for node in prepared.nodes:
        if isinstance(node, ModelLoopNode):
            warnings += _check_node(node, prepared, view)
    return tuple(dict.fromkeys(warnings))


def _check_node(node: ModelLoopNode, prepared: PreparedRequest, view: ModelView) -> Sequence[str]:
    spec = prepared.card.loops[node.loop]
    if spec.check is None:
        return ()
    inputs = known_inputs(node, prepared.inputs)
    check: InputCheck = resolve_ref(spec.check)
    try:
        return check(spec, view, prepared.parameters_of(node.node_id), inputs)
    except Exception as error:
        failure = as_failure(error, f"the check of loop {node.loop}")
        if failure is error:
            raise
        raise failure from error


def load_host(
    card: ModelCard,
    *,
    tasks: Sequence[str],
    device: str = "auto",
    precision: str | None = None,
    access: HubAccess | None = None,
) -> HostSide:
    """Load what the checks of some tasks' loops need; nothing if they have none.

    Args:
        card: The card.
        tasks: Tasks that will be asked for.
        device: Where the weights will be.
        precision: Number format of the weights; None takes the card's default for the device.
        access: How the hub is reached.

    Raises:
        PrecisionMismatchError: The weights do not run in that precision.
        CheckpointError: A file is missing or broken.
        ResourceError: There is no such device.
    """
    target = resolve_device(device)
    chosen = resolve_precision(card, precision, target)
    used = {name for loop in card.loops.values() if loop.check is not None for name in loop.components}
    specs = [
        spec
        for name, spec in card.components.items()
        if name in used and spec.kind in HOST_KINDS and any(spec.is_needed_for(task) for task in tasks)
    ]
    components = load_components(card, specs, target, chosen, access=access) if specs else {}
    return HostSide(card, components, precision=chosen)
