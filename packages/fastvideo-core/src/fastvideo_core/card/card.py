"""The model card: components, loops, recipe, parity and capabilities as one versioned, validated unit."""

from __future__ import annotations

from difflib import get_close_matches

from pydantic import Field, ValidationError, model_validator

from fastvideo_core.card.base import Contract, Identifier, JsonScalar
from fastvideo_core.card.caches import CacheContract
from fastvideo_core.card.capabilities import CapabilityMatrix, TaskSpec
from fastvideo_core.card.checkpoint import CheckpointManifest
from fastvideo_core.card.components import ComponentSpec
from fastvideo_core.card.loops import LoopSpec
from fastvideo_core.card.parallelism import ParallelismContract
from fastvideo_core.card.parity import ParitySpec
from fastvideo_core.card.precision import PrecisionContract
from fastvideo_core.card.recipe import RecipeSpec
from fastvideo_core.errors import CardError, LoopMismatchError, PrecisionMismatchError, UnknownTaskError

__all__ = ["ModelCard"]


class ModelCard(Contract):
    """A deployable video model: weights, the loops they assume, what made them, and what must hold.

    Attributes:
        schema_version: Version of this contract.
        model_id: Name of the card.
        version: Version of the card itself; weights have their own, by content.
        family: Model family, the plugin's name.
        title: One line for lists.
        license: SPDX identifier of the weights.
        components: Parts by name.
        loops: Loops by name.
        capabilities: Tasks with inputs, outputs and parameters.
        recipe: What produced the weights.
        parity: What must agree with what.
        caches: Caches by name.
        parallelism: Parallel plans allowed.
        precision: Number formats allowed.
        checkpoint: Files.
        figures: Measured figures of this card (accuracies, sizes), as published with it.
    """

    schema_version: int = Field(default=1, ge=1, le=1)
    model_id: Identifier
    version: str = "1"
    family: Identifier
    title: str = ""
    license: str = ""
    components: dict[Identifier, ComponentSpec]
    loops: dict[Identifier, LoopSpec]
    capabilities: CapabilityMatrix
    recipe: RecipeSpec
    parity: ParitySpec = ParitySpec()
    caches: dict[Identifier, CacheContract] = Field(default_factory=dict)
    parallelism: ParallelismContract = ParallelismContract()
    precision: PrecisionContract = PrecisionContract()
    checkpoint: CheckpointManifest
    figures: dict[str, JsonScalar] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_consistent(self) -> ModelCard:
        problems = [*self._component_problems(), *self._loop_problems(), *self._task_problems()]
        if problems:
            raise ValueError("; ".join(problems))
        self._check_recipe()
        return self

    def _component_problems(self) -> list[str]:
        known_tests = {test.test_id for test in self.parity.tests}
        problems = []
        for name, component in self.components.items():
            if component.component_id != name:
                problems.append(f"components[{name!r}].component_id is {component.component_id!r}")
            if component.load_id not in self.checkpoint.components:
                problems.append(f"component {name!r} loads {component.load_id!r}, which the checkpoint does not have")
            if unknown := set(component.parity_tests) - known_tests:
                problems.append(f"component {name!r} names unknown parity tests {sorted(unknown)}")
            if unknown := set(component.required_for) - set(self.capabilities.tasks):
                problems.append(f"component {name!r} is required for unknown tasks {sorted(unknown)}")
        return problems

    def _loop_problems(self) -> list[str]:
        problems = []
        for name, loop in self.loops.items():
            if loop.loop_id != name:
                problems.append(f"loops[{name!r}].loop_id is {loop.loop_id!r}")
            if unknown := set(loop.components) - set(self.components):
                problems.append(f"loop {name!r} uses unknown components {sorted(unknown)}")
            caches = {*loop.cache_policy.reads, *loop.cache_policy.writes}
            if unknown := caches - set(self.caches):
                problems.append(f"loop {name!r} uses unknown caches {sorted(unknown)}")
        return problems

    def _task_problems(self) -> list[str]:
        problems = []
        for load_id, files in self.checkpoint.components.items():
            named = {*files.required_for, *files.optional_for}
            if unknown := named - set(self.capabilities.tasks):
                problems.append(f"checkpoint component {load_id!r} names unknown tasks {sorted(unknown)}")
        return problems

    def _check_recipe(self) -> None:
        assumed = self.recipe.assumes_loop
        generative = [name for name, loop in self.loops.items() if loop.is_generative]
        if assumed not in generative:
            raise LoopMismatchError(
                "the recipe assumes a generative loop that the card does not have",
                field="recipe.assumes_loop",
                value=assumed,
                allowed=", ".join(generative) or "none: no loop of the card is generative",
            )
        precision = self.recipe.assumes_precision
        if precision != "any" and precision not in self.precision.allowed:
            raise PrecisionMismatchError(
                "the recipe assumes a precision that the card does not allow",
                field="recipe.assumes_precision",
                value=precision,
                allowed=", ".join(self.precision.allowed),
            )

    def task(self, name: str) -> TaskSpec:
        """Return a task.

        Raises:
            UnknownTaskError: With the tasks there are.
        """
        if name in self.capabilities.tasks:
            return self.capabilities.tasks[name]
        near = get_close_matches(name, self.capabilities.tasks, n=1, cutoff=0.3)
        raise UnknownTaskError(
            f"card {self.model_id} does not have this task",
            field="task",
            value=name,
            allowed=", ".join(self.capabilities.tasks),
            nearest=next(iter(near), None),
        )

    def check_loop(self, loop_id: str) -> LoopSpec:
        """Return a loop, refusing a generative one that the recipe does not assume.

        Raises:
            LoopMismatchError: The weights need another loop, or the card has no such loop.
        """
        loop = self.loops.get(loop_id)
        if loop is None:
            raise LoopMismatchError("no such loop", field="loop", value=loop_id, allowed=", ".join(self.loops))
        if loop.is_generative and loop_id != self.recipe.assumes_loop:
            raise LoopMismatchError(
                f"the weights of {self.model_id} were made for another loop",
                field="loop",
                value=loop_id,
                allowed=self.recipe.assumes_loop,
            )
        return loop

    def check_precision(self, precision: str) -> None:
        """Refuse a precision that the card or its recipe rules out.

        Raises:
            PrecisionMismatchError: With what is allowed.
        """
        self.precision.check(precision, assumed=self.recipe.assumes_precision)

    @classmethod
    def from_json(cls, text: str, *, origin: str) -> ModelCard:
        """Read a card from JSON.

        Args:
            text: The JSON document.
            origin: Where it came from, for the error.

        Raises:
            CardError: What is wrong, field by field, in one line.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise CardError(f"{origin} is not a valid card: {_one_line(error)}") from error


def _one_line(error: ValidationError) -> str:
    parts = []
    for item in error.errors()[:8]:
        where = ".".join(str(part) for part in item["loc"]) or "card"
        parts.append(f"{where}: {item['msg']}")
    return "; ".join(parts)
