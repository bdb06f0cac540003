"""The compile tier: a model's blocks through `torch.compile`, or all of them as one captured CUDA graph.

It is a tier over eager blocks, which are always right and always there: what cannot be compiled or captured runs as it
is, with one warning in the log. Nothing larger than the blocks of one call is compiled, so that a step body stays plain
Python. A step body takes part by giving its model the runner that the runtime offers it.
"""

from __future__ import annotations

import inspect
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import ParameterError, describe_failure
from fastvideo_core.loop.keys import EXACT
from fastvideo_core.loop.work import ShapeSignature, WorkPlan
from fastvideo_core.runtime.cuda_graphs import CudaGraphs
from fastvideo_core.runtime.tensor_trees import NotATreeError, flatten_tree

__all__ = ["BlockRunner", "CompileCache", "CompileKey", "CompileOptions", "CompileStats", "GraphMaker"]

_LOG = logging.getLogger(__name__)


class CompileKey(NamedTuple):
    """What compiled code is for; other steps may need other code.

    Attributes:
        model: The resident model.
        component: The component that runs.
        loop: The loop of the card.
        work_kind: Kind of work.
        shape_sig: Shapes of a plan, and the number of plans in the call.
        precision: Number format.
        parallel_plan: Parallel plan; "" for one device.
        backend: Compiler.
    """

    model: str
    component: str
    loop: str
    work_kind: str
    shape_sig: ShapeSignature
    precision: str
    parallel_plan: str
    backend: str

    @classmethod
    def of(cls, plans: Sequence[WorkPlan[Any]], backend: str) -> CompileKey:
        """Return the key of a call."""
        plan, batch = plans[0], plans[0].batch_key
        return cls(
            plan.instance_id,
            batch.component,
            plan.loop_id,
            str(plan.kind),
            ShapeSignature((*plan.shape_sig.dims, ("plans", len(plans)))),
            batch.precision,
            batch.parallel_plan,
            backend,
        )


class GraphMaker(Protocol):
    """Captures work on a device."""

    def capture(
        self, function: Callable[[list[torch.Tensor]], Any], tensors: list[torch.Tensor]
    ) -> Callable[[list[torch.Tensor]], Any]:
        """Record a function of tensors; what is returned does the same with others of the same shapes."""
        ...


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """What is compiled, as far as the card allows it.

    Attributes:
        blocks: Whether blocks are compiled; None means on an accelerator only.
        graphs: Whether calls are captured; None means on an accelerator only.
        backend: Compiler of `torch.compile`: a name, or a function.
        capture_sizes: Numbers of plans in a call for which graphs are captured.
        max_entries: Most keys with compiled code.
        max_graphs: Most captured graphs of a key: calls of one key differ by the branches of their requests.
    """

    blocks: bool | None = None
    graphs: bool | None = None
    backend: str | Callable[..., Any] = "inductor"
    capture_sizes: tuple[int, ...] = (1, 2, 4, 8)
    max_entries: int = 64
    max_graphs: int = 4

    def __post_init__(self) -> None:
        for name in ("max_entries", "max_graphs"):
            if getattr(self, name) < 1:
                raise ParameterError("too few", field=name, value=getattr(self, name), allowed="1 or more", nearest=1)
        if any(size < 1 for size in self.capture_sizes):
            raise ParameterError(
                "not numbers of plans", field="capture_sizes", value=self.capture_sizes, allowed="1 or more each"
            )

    @property
    def backend_name(self) -> str:
        """Name of the compiler, for keys."""
        return self.backend if isinstance(self.backend, str) else getattr(self.backend, "__name__", "custom")


@dataclass(slots=True)
class CompileStats:
    """What a cache did so far.

    Attributes:
        num_calls: Calls that it ran.
        num_compiled: Blocks compiled.
        num_captured: Graphs captured.
        num_replayed: Calls that were a replay of a graph.
        num_failures: Keys whose compilation or capture failed, so that they run eagerly.
        num_evicted: Keys whose code was dropped for others.
    """

    num_calls: int = 0
    num_compiled: int = 0
    num_captured: int = 0
    num_replayed: int = 0
    num_failures: int = 0
    num_evicted: int = 0

    def to_json(self) -> dict[str, int]:
        """Return the figures by name."""
        return asdict(self)


@dataclass(slots=True)
class _Entry:
    """Code of one key. The modules are held, so that none of another identity takes their place."""

    key: CompileKey
    blocks: dict[int, tuple[nn.Module, Callable[..., Any]]] = field(default_factory=dict)
    graphs: OrderedDict[Any, Callable[[list[torch.Tensor]], Any]] = field(default_factory=OrderedDict)
    may_compile: bool = True
    may_capture: bool = True


class BlockRunner:
    """Runs the blocks of one call; what a step body hands its model in place of a plain loop over them.

    Attributes:
        is_cold: Whether something was compiled or captured in this call, so that its time says nothing of others.
    """

    __slots__ = ("_cache", "_captures", "_compiles", "_entry", "is_cold")

    def __init__(self, cache: CompileCache, entry: _Entry, *, compiles: bool, captures: bool) -> None:
        self._cache = cache
        self._entry = entry
        self._compiles = compiles
        self._captures = captures
        self.is_cold = False

    def __call__(self, blocks: Iterable[nn.Module], stream: Any, *arguments: Any) -> Any:
        """Call every block once, in order: `stream = block(stream, *arguments)`; return the last stream.

        Args:
            blocks: The blocks; they change neither the stream nor the arguments in place.
            stream: Tensor, or a structure of tensors, that goes from block to block.
            arguments: What all blocks read.
        """
        modules = list(blocks)
        self._cache.stats.num_calls += 1
        if self._captures and self._entry.may_capture:
            try:
                return self._replay(modules, (stream, arguments))
            except NotATreeError as error:
                self._give_up_graphs(error)
            except Exception as error:  # noqa: BLE001 - whatever capture trips over, the blocks can run without it
                self._give_up_graphs(error)
        return self._run(modules, stream, arguments)

    def _run(self, modules: Sequence[nn.Module], stream: Any, arguments: tuple[Any, ...]) -> Any:
        for module in modules:
            stream = self._call(module, stream, arguments)
        return stream

    def _call(self, module: nn.Module, stream: Any, arguments: tuple[Any, ...]) -> Any:
        if not (self._compiles and self._entry.may_compile):
            return module(stream, *arguments)
        try:
            return self._compiled(module)(stream, *arguments)
        except Exception as error:  # noqa: BLE001 - the eager block tells whether it is the compiler's fault
            result = module(stream, *arguments)
            self._entry.may_compile = False
            self._entry.blocks.clear()
            self._failed("cannot be compiled", error)
            return result

    def _compiled(self, module: nn.Module) -> Callable[..., Any]:
        held = self._entry.blocks.get(id(module))
        if held is None:
            held = self._entry.blocks[id(module)] = (module, _compile(module, self._cache.options.backend))
            self._cache.stats.num_compiled += 1
            self.is_cold = True
        return held[1]

    def _replay(self, modules: list[nn.Module], inputs: Any) -> Any:
        tensors, rebuild, shape = flatten_tree(inputs)
        signature = (shape, tuple(id(module) for module in modules))
        graphs, stats = self._entry.graphs, self._cache.stats
        replay = graphs.get(signature)
        if replay is None:
            self.is_cold = True

            def function(static: list[torch.Tensor]) -> Any:
                stream, arguments = rebuild(static)
                return self._run(modules, stream, arguments)

            replay = graphs[signature] = self._cache.graph_maker.capture(function, tensors)
            stats.num_captured += 1
            if len(graphs) > self._cache.options.max_graphs:
                graphs.popitem(last=False)
        else:
            graphs.move_to_end(signature)
            stats.num_replayed += 1
        return replay(tensors)

    def _give_up_graphs(self, error: Exception) -> None:
        self._entry.may_capture = False
        self._entry.graphs.clear()
        self._failed("cannot be captured", error)

    def _failed(self, what: str, error: Exception) -> None:
        key = self._entry.key
        self._cache.stats.num_failures += 1
        self.is_cold = True
        _LOG.warning(
            "%s of %s, loop %s, %s: %s and runs eagerly: %s",
            key.component, key.model, key.loop, dict(key.shape_sig.dims), what, describe_failure(error),
        )  # fmt: skip


class CompileCache:
    """Compiled code and captured graphs by key; used on the thread that runs steps.

    Args:
        card: The card, whose loops say what may be compiled.
        device: Where the steps run.
        options: What is compiled.
        graph_maker: Captures graphs; None takes CUDA graphs, where there is CUDA.

    Attributes:
        options: What is compiled.
        stats: What was done so far.
    """

    def __init__(
        self,
        card: ModelCard,
        device: torch.device,
        options: CompileOptions | None = None,
        *,
        graph_maker: GraphMaker | None = None,
    ) -> None:
        self.options = options or CompileOptions()
        self.stats = CompileStats()
        is_cuda = device.type == "cuda"
        self._compiles = is_cuda if self.options.blocks is None else self.options.blocks
        self._captures = is_cuda if self.options.graphs is None else self.options.graphs
        self._captures = self._captures and (is_cuda or graph_maker is not None)
        self._maker = graph_maker
        self._policies = {name: spec.graph_capture for name, spec in card.loops.items()}
        self._entries: OrderedDict[CompileKey, _Entry] = OrderedDict()

    @property
    def graph_maker(self) -> GraphMaker:
        """What captures graphs; made when it is first needed."""
        if self._maker is None:
            self._maker = CudaGraphs()
        return self._maker

    def runner(self, plans: Sequence[WorkPlan[Any]]) -> BlockRunner | None:
        """Return what runs the blocks of a call; None where they run eagerly.

        Eager are: loops whose card does not allow more, exact steps, which keep the reference's order of operations,
        and the train profile, whose backward pass reads what a graph would write over.

        Args:
            plans: The plans of the call.
        """
        plan = plans[0]
        policy = self._policies[plan.loop_id]
        compiles = self._compiles and policy.compile_blocks
        captures = self._captures and policy.cuda_graph and len(plans) in self.options.capture_sizes
        if not (compiles or captures) or plan.profile == "train" or plan.batch_key.variant == EXACT:
            return None
        return BlockRunner(self, self._entry(CompileKey.of(plans, self.options.backend_name)), compiles=compiles,
                           captures=captures)  # fmt: skip

    def has_code(self, plans: Sequence[WorkPlan[Any]]) -> bool:
        """Tell whether a call of these plans would run without compiling or capturing first, as far as is known."""
        entry = self._entries.get(CompileKey.of(plans, self.options.backend_name))
        return entry is not None and bool(entry.blocks or entry.graphs or not (entry.may_compile or entry.may_capture))

    def forget(self, components: Iterable[str] | None = None) -> None:
        """Drop the code of components, and with it the hold on their modules; before they sleep, or are replaced.

        Args:
            components: Their names; None means all.
        """
        names = None if components is None else set(components)
        for key in [key for key in self._entries if names is None or key.component in names]:
            del self._entries[key]

    def _entry(self, key: CompileKey) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key)
            if len(self._entries) > self.options.max_entries:
                self._entries.popitem(last=False)
                self.stats.num_evicted += 1
        else:
            self._entries.move_to_end(key)
        return entry


def _compile(module: nn.Module, backend: str | Callable[..., Any]) -> Callable[..., Any]:
    """Compile one block for the shapes that it is called with.

    Blocks of one class share their Python code, and by torch's default a cache of few variants: each gets its own.
    """
    options: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
        options["isolate_recompiles"] = True
    compiled: Callable[..., Any] = torch.compile(module, backend=backend, dynamic=False, **options)
    return compiled
