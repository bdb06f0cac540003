"""What plugins describe themselves with: one small class for each kind of thing that a plugin can bring.

A description names its implementation by an object reference, `package.module:Name`, so that listing plugins imports
neither the implementation nor torch. The reference is followed once the thing is enabled, when a model is loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fastvideo_core.errors import PluginError

__all__ = [
    "AttentionBackendSpec",
    "ConfigSection",
    "DoctorCheck",
    "HookedSpec",
    "InterceptorSpec",
    "MethodSpec",
    "NodeSpec",
    "ObserverSpec",
    "PluginSpec",
    "ProgramTemplate",
    "RewardSpec",
    "SamplerSpec",
    "ServerPartSpec",
    "TransportSpec",
]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
_REF = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_REF_FIELDS = ("implementation", "options", "state", "num_kept", "available", "parameters")

InterceptorLevel = Literal["step", "block"]
"""`step` answers for the whole model, `block` runs the model's blocks in its own way."""

ObserverEvent = Literal["steps", "tensors"]
"""`steps` is told of every call and its results; `tensors` is shown the intermediate tensors, for which every step runs
alone in its call, and eagerly."""


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """What every description has.

    Attributes:
        name: Lower-case name, unique among all things of its kind.
        implementation: Reference to the object that does it.
        summary: One line for lists.
    """

    name: str
    implementation: str
    summary: str = ""

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not _NAME.fullmatch(self.name):
            raise PluginError(f"{kind}: name {self.name!r} is not allowed: lower case letters, digits, '.', '_', '-'")
        for field in _REF_FIELDS:
            ref = getattr(self, field, None)
            if ref is not None and not _REF.fullmatch(ref):
                raise PluginError(
                    f"{kind} {self.name!r}: {field} {ref!r} is no reference; allowed: package.module:Name"
                )


@dataclass(frozen=True, slots=True)
class SamplerSpec(PluginSpec):
    """A sampler; the implementation is an object of `fastvideo_core.loop.samplers.Sampler` whose name is this one.

    Attributes:
        parameters: Reference to the parameters (`fastvideo_core.card.ParameterSpec` by name) with which requests set
            its options, as `Sampler.parameters` names them; None if it has none. Two samplers may share them.
    """

    parameters: str | None = None


@dataclass(frozen=True, slots=True)
class AttentionBackendSpec(PluginSpec):
    """A way to compute attention; the implementation is a function of (query, key, value), all (B, S, N, K).

    Attributes:
        devices: Kinds of devices that it runs on.
        precisions: Number formats that it takes.
        available: Function without arguments that gives the reason why it cannot run on this machine, or None.
    """

    devices: tuple[str, ...] = ("cpu", "cuda")
    precisions: tuple[str, ...] = ("float32", "bfloat16", "float16")
    available: str | None = None


@dataclass(frozen=True, slots=True)
class HookedSpec(PluginSpec):
    """What observers and interceptors have in common.

    Attributes:
        options: Reference to the pydantic model of its options; None if it has none. An interceptor's may have a method
            `check_parameters`, which is given a request's resolved parameters and raises a ParameterError that names
            the option that does not fit them.
        request_options: Options that a request may set; all others are the deploy config's alone.
        loops: Loops that it is for, by name; empty stands for all that can carry it.
    """

    options: str | None = None
    request_options: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Called by name: a slotted dataclass is made anew, which `super()` without arguments does not survive.
        PluginSpec.__post_init__(self)
        if self.request_options and self.options is None:
            raise PluginError(f"{type(self).__name__} {self.name!r}: request_options without a model of options")


@dataclass(frozen=True, slots=True)
class ObserverSpec(HookedSpec):
    """Something that looks at steps and changes nothing; the implementation is a class, called with its options.

    Attributes:
        wants: What it is told; see `ObserverEvent`.
    """

    wants: tuple[ObserverEvent, ...] = ("steps",)


@dataclass(frozen=True, slots=True)
class InterceptorSpec(HookedSpec):
    """Something that computes steps in another way; the implementation is a class, called with its options.

    Attributes:
        level: Where it stands; see `InterceptorLevel`.
        state: Reference to the class of its state, a dataclass derived from `fastvideo_core.loop.hooks.PluginState`;
            None if it has none.
        num_kept: Reference to a function that is given the options, and returns how many tensors the state of a branch
            keeps at the most, each as large as the branch's prediction (`step`) or its stream between blocks (`block`):
            requests are admitted with these bytes. None stands for one, if there is a state.
        distribution_altering: Whether results differ from those without it; exact requests are refused then.
        declared_error: Largest relative difference of a result that its defaults stay within, measured and tested.
        conflicts_with: Names of interceptors that cannot be on together with it; "*" stands for all others.
        max_batch: Most requests in a call with it; None leaves that to the loop.
        needs_steps_at_least: Fewest steps of a loop on which it makes sense; few-step distilled cards have less.
    """

    level: InterceptorLevel = "step"
    state: str | None = None
    num_kept: str | None = None
    distribution_altering: bool = True
    declared_error: float = 0.0
    conflicts_with: tuple[str, ...] = ()
    max_batch: int | None = None
    needs_steps_at_least: int = 1

    def __post_init__(self) -> None:
        HookedSpec.__post_init__(self)
        where = f"InterceptorSpec {self.name!r}"
        if self.level not in ("step", "block"):
            raise PluginError(f"{where}: level {self.level!r}; allowed: step, block")
        if not self.distribution_altering and self.declared_error:
            raise PluginError(f"{where}: declares an error of {self.declared_error} and that it alters nothing")
        if not 0 <= self.declared_error < 1:
            raise PluginError(f"{where}: declared_error {self.declared_error}; allowed: 0 up to 1")
        if self.max_batch is not None and self.max_batch < 1:
            raise PluginError(f"{where}: max_batch {self.max_batch}; allowed: 1 or more")


@dataclass(frozen=True, slots=True)
class TransportSpec(PluginSpec):
    """A transport; the implementation is a class without arguments, a `fastvideo_core.transport.Transport`.

    Attributes:
        crosses_processes: Whether the two ends may be in different processes.
        crosses_hosts: Whether they may be on different machines.
        devices: Kinds of devices whose tensors it takes.
        available: Function without arguments that gives the reason why it cannot run on this machine, or None.
    """

    crosses_processes: bool = True
    crosses_hosts: bool = False
    devices: tuple[str, ...] = ("cpu",)
    available: str | None = None


@dataclass(frozen=True, slots=True)
class MethodSpec(PluginSpec):
    """A training method; the implementation is a class, called with its options.

    Attributes:
        options: Reference to the pydantic model of its hyper-parameters.
        roles: Roles of weights that it uses, for instance student, ema, old, reference.
        required_level: Lowest parity level between rollout and training under which it is sound.
    """

    options: str | None = None
    roles: tuple[str, ...] = ("student",)
    required_level: str = "C2"


@dataclass(frozen=True, slots=True)
class RewardSpec(PluginSpec):
    """A reward; the implementation is a class, called with its options, whose `score` takes a batch of artifacts.

    Attributes:
        options: Reference to the pydantic model of its options.
        modality: What it scores.
        minimum: Least value.
        maximum: Greatest value; None if there is no bound.
    """

    options: str | None = None
    modality: str = "video"
    minimum: float | None = 0.0
    maximum: float | None = 1.0


@dataclass(frozen=True, slots=True)
class NodeSpec(PluginSpec):
    """A node type of workflows, which computes values of values while a workflow is compiled.

    The implementation is a function that is given the inputs by name, and returns the outputs in order. A ValueError
    that it raises says what is wrong with the inputs.

    Attributes:
        node_type: The type's name in workflow files, in their own spelling.
        inputs: Its inputs by name, with their types as workflow files name them: INT, FLOAT, BOOLEAN, STRING; in the
            order in which files store their values.
        outputs: Types of its outputs, in order.
    """

    node_type: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        PluginSpec.__post_init__(self)
        if not self.node_type:
            raise PluginError(f"NodeSpec {self.name!r}: node_type is empty")


@dataclass(frozen=True, slots=True)
class ProgramTemplate(PluginSpec):
    """A named program with parameters of its own, callable like a task; the implementation is the program.

    Attributes:
        version: Version of the template.
        parameters: Reference to the pydantic model of its public parameters.
    """

    version: str = "1"
    parameters: str | None = None


@dataclass(frozen=True, slots=True)
class ServerPartSpec(PluginSpec):
    """A part of a server; the implementation is a function of a `fastvideo_core.runtime.serving.ServerHost`.

    It returns a `fastvideo_core.runtime.serving.ServerPart`, once, when the server starts.

    Attributes:
        section: The plugin's section of the deploy config, which the part is given; None if it has none.
    """

    section: str | None = None


@dataclass(frozen=True, slots=True)
class DoctorCheck(PluginSpec):
    """A question that `fastvideo doctor` asks; the implementation is a function without arguments.

    It gives one line each for what is there, and raises `fastvideo_core.errors.ResourceError` with the reason why
    something cannot run here.
    """


@dataclass(frozen=True, slots=True)
class ConfigSection(PluginSpec):
    """A top-level section of the deploy config; its name is the section's, the implementation its pydantic model."""
