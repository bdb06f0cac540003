"""The extension surface. Every hook that a plugin may implement is here, with what it is given and must return.

A plugin is a module named by an entry point of group `fastvideo.plugins`; the entry's name is `<kind>.<name>`. The
module marks its functions with `hookimpl` and imports neither torch nor a model.

The surface has one version, `HOOK_VERSION`: its second part grows when a hook is added, its first when one changes or
goes. A module says which versions it was written for with `HOOK_VERSIONS = ">=1.0,<2"`; without that, any of the first
major version. `fastvideo plugins hooks` lists all this.

A hook that is to go is marked `deprecated`, with what takes its place, for at least one version of the surface before
the first part of its version is raised and it is gone. Until then it works as before, and whoever lists plugins is told
which of them implement it.

Unless a hook says otherwise, it is called once while plugins are put together, before any model is loaded; it returns a
sequence of descriptions (see `fastvideo_core.extend.base`) and must be quick. What it raises, or a wrong type, makes
the plugin a failed one: it is named with its distribution, version and the cause, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import pluggy

if TYPE_CHECKING:
    from fastvideo_core.card import CheckpointSource, ModelCard
    from fastvideo_core.extend.base import (
        AttentionBackendSpec,
        ConfigSection,
        DoctorCheck,
        InterceptorSpec,
        MethodSpec,
        NodeSpec,
        ObserverSpec,
        ProgramTemplate,
        RewardSpec,
        SamplerSpec,
        ServerPartSpec,
        TransportSpec,
    )
    from fastvideo_core.extend.commands import Command

__all__ = ["ENTRY_POINT_GROUP", "HOOK_VERSION", "PROJECT_NAME", "deprecated", "hookimpl", "hookspec", "since"]

PROJECT_NAME = "fastvideo"
ENTRY_POINT_GROUP = "fastvideo.plugins"
HOOK_VERSION = "1.0"
"""Version of this surface."""

_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


def since(version: str) -> Callable[[_FunctionT], _FunctionT]:
    """Mark a hook with the version of the surface that it came with."""

    def mark(function: _FunctionT) -> _FunctionT:
        function.fastvideo_since = version  # type: ignore[attr-defined]  # functions take attributes
        return function

    return mark


def deprecated(remedy: str) -> Callable[[_FunctionT], _FunctionT]:
    """Mark a hook that will go, with what to implement in its place and from which version on it is gone."""

    def mark(function: _FunctionT) -> _FunctionT:
        function.fastvideo_deprecated = remedy  # type: ignore[attr-defined]  # functions take attributes
        return function

    return mark


@since("1.0")
@hookspec
def model_cards() -> Sequence[ModelCard]:
    """Return the cards that the plugin brings; the only hook of a family that is asked whenever cards are listed.

    Two plugins with a card of one id are an error.
    """
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec(firstresult=True)
def card_from_layout(
    source: CheckpointSource, index: Mapping[str, Any], configs: Mapping[str, Mapping[str, Any]]
) -> ModelCard | None:
    """Describe a checkpoint in a layout of this family, or return None if it is of another family.

    Called for a folder or hub repository without a card of its own; the first plugin that answers wins.

    Args:
        source: Where the checkpoint is.
        index: Content of its `model_index.json`.
        configs: Content of each component's `config.json` (or `scheduler_config.json`), by folder.

    Raises:
        CheckpointError: It is of this family, and something in it is missing or wrong.
    """
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def hub_repositories() -> Mapping[str, str]:
    """Return the hub repositories that the plugin's cards stand for: repository to card id."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def cli_commands() -> Mapping[str, Command]:
    """Return commands for the command line, by name; a built-in command of that name hides the plugin's.

    It is called when the help is shown or a command is not built in, so the plugin's module should import little; the
    command's own module is imported when it runs.
    """
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def config_sections() -> Sequence[ConfigSection]:
    """Return the top-level sections of the deploy config that the plugin owns; no other plugin may own them too."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def samplers() -> Sequence[SamplerSpec]:
    """Return samplers, which cards of any family may name; a name of core's or of another plugin's is an error."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def attention_backends() -> Sequence[AttentionBackendSpec]:
    """Return ways to compute attention; the deploy config chooses one by its name, `sdpa` being core's own."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def observers() -> Sequence[ObserverSpec]:
    """Return observers. All of an enabled plugin are on; each is made once an engine and closed with it.

    An observer that raises, or that changes what it was shown, ends the request that it was told of.
    """
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def interceptors() -> Sequence[InterceptorSpec]:
    """Return step and block interceptors. All of an enabled plugin are on; each is made once an engine.

    Conflicts, too few steps, and loops that cannot carry them are found before weights are read. An interceptor keeps
    nothing of a request on itself: what it remembers is its state, which the runtime hands it and takes back.
    """
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def transports() -> Sequence[TransportSpec]:
    """Return transport backends; the deploy config, or whoever moves states, chooses one by its name."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def training_methods() -> Sequence[MethodSpec]:
    """Return RL and distillation methods; a training config chooses one by its name."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def rewards() -> Sequence[RewardSpec]:
    """Return rewards; a training config names those that it adds up."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def workflow_nodes() -> Sequence[NodeSpec]:
    """Return node types that a workflow compiler understands besides its own; two for one type are an error."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def program_templates() -> Sequence[ProgramTemplate]:
    """Return programs with parameters of their own, which are offered like tasks under their names."""
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def server_parts() -> Sequence[ServerPartSpec]:
    """Return parts of a server: routes beside its own, and tasks beside the card's.

    A server has those of the plugins that the deploy config names.
    """
    raise AssertionError("a specification is not called")


@since("1.0")
@hookspec
def doctor_checks() -> Sequence[DoctorCheck]:
    """Return what `fastvideo doctor` is to ask, of all plugins that are on."""
    raise AssertionError("a specification is not called")
