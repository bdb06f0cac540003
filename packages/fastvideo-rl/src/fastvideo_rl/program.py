"""Training programs: which nodes of a task's program run for training, and what they hand the trainer.

A training program adds no node and no loop. It is a part of the program that serves, run in the rollout profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastvideo_core.card import ModelCard
from fastvideo_core.errors import CardError, ConfigError
from fastvideo_core.program import ModelLoopNode, TensorEdge
from fastvideo_core.request.base import OutputSpec
from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.prepare import PreparedRequest, check_task, prepare_request

__all__ = ["TrainingProgram"]


@dataclass(frozen=True, slots=True)
class TrainingProgram:
    """The part of a task's program that training runs.

    Attributes:
        card: The card.
        task: Its task.
        generator: The node that draws the sample.
        text: The nodes before it, which training needs alone for prompts without a sample.
    """

    card: ModelCard
    task: str
    generator: ModelLoopNode
    text: tuple[str, ...]

    @classmethod
    def of(cls, card: ModelCard, task: str | None = None) -> TrainingProgram:
        """Find the generating node of a task.

        Raises:
            UnknownTaskError: The card has no such task.
            ConfigError: The task's loop cannot be trained: it records nothing, or has no prediction.
            CardError: The task draws no sample, or more than one.
        """
        name = task or card.capabilities.default_task
        program = check_task(card, name)
        nodes = [node for node in program.nodes if isinstance(node, ModelLoopNode)]
        generating = [node for node in nodes if card.loops[node.loop].is_generative]
        if len(generating) != 1:
            raise CardError(f"task {name} of {card.model_id} has {len(generating)} generating nodes; allowed: one")
        spec = card.loops[generating[0].loop]
        if spec.predict is None or spec.behavior_schema is None:
            raise ConfigError(
                f"loop {spec.loop_id} of {card.model_id} cannot be trained: it predicts or records nothing",
                field="card", value=card.model_id, allowed="a card whose loop has `predict` and `behavior_schema`",
            )  # fmt: skip
        sources = tuple(edge.node for edge in generating[0].tensor_edges())
        return cls(card, name, generating[0], sources)

    @property
    def trained(self) -> tuple[str, ...]:
        """The components whose weights are trained: the generating loop's transformers."""
        loop = self.card.loops[self.generator.loop]
        return tuple(name for name in loop.components if self.card.components[name].kind == "dit")

    def rollout(
        self, prompt: str, parameters: Mapping[str, Any], *, request_id: str, outputs: Sequence[str] = ("latents",)
    ) -> PreparedRequest:
        """Return the request of one sample, in the rollout profile.

        Args:
            prompt: What to show.
            parameters: Of the request, the seed among them.
            request_id: Its id.
            outputs: Artifacts that are wanted besides what is captured.

        Raises:
            InputError: A parameter or the prompt is not allowed.
        """
        request = build_request(
            self.card, prompt, task=self.task, image=None, outputs=tuple(outputs), exact=False, parameters=parameters,
            request_id=request_id, latency_class="batch",
        )  # fmt: skip
        captured = OutputSpec(artifacts=request.outputs.artifacts, capture_behavior=True)
        return prepare_request(self.card, request.model_copy(update={"outputs": captured}))

    def prompts_only(self, prompt: str, parameters: Mapping[str, Any], *, request_id: str) -> PreparedRequest:
        """Return the request that runs the nodes before the sample alone: a prompt is encoded, and nothing drawn."""
        prepared = self.rollout(prompt, parameters, request_id=request_id)
        return replace(prepared, nodes=tuple(node for node in prepared.nodes if node.node_id in self.text))

    def inputs_of(self, captured: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return what the generating node was given, by port, from what a request has captured."""
        ports = self.generator.inputs.items()
        return {port: captured[edge.node][edge.output] for port, edge in ports if isinstance(edge, TensorEdge)}
