"""The suite as test classes: derive from the one of your kind, override its one fixture, and pytest runs every promise.

class TestHold(InterceptorContract):
    @pytest.fixture
    def spec(self):
        return HOLD
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fastvideo_core.card import ModelCard, resolve_ref
from fastvideo_core.extend import AttentionBackendSpec, InterceptorSpec, ObserverSpec, TransportSpec
from fastvideo_testing.contract import attention, family, hooks, kept, transport

__all__ = [
    "AttentionContract",
    "InterceptorContract",
    "ModelFamilyContract",
    "ObserverContract",
    "TransportContract",
]

SMALL: Mapping[str, Any] = {"num_frames": 9, "height": 32, "width": 32}


class ModelFamilyContract:
    """A model family. Override the fixture `card`: a card whose weights are on this machine.

    Attributes:
        parameters: Parameters of the requests that are run; small sizes.
        larger: Parameters of a request whose steps are larger.
        cost_factor: Within which factor stated operations are of counted ones.
    """

    parameters: ClassVar[Mapping[str, Any]] = SMALL
    larger: ClassVar[Mapping[str, Any]] = {**SMALL, "height": 64, "width": 64}
    cost_factor: ClassVar[float] = 2.0

    @pytest.fixture
    def card(self) -> ModelCard:
        """Return the card."""
        raise pytest.UsageError("override the fixture `card`")

    def test_the_card_is_valid_and_survives_json(self, card: ModelCard) -> None:
        """See `family.check_card`."""
        family.check_card(card)

    def test_next_launches_nothing_and_is_repeatable(self, card: ModelCard) -> None:
        """See `family.check_next`."""
        family.check_next(card, self.parameters)

    def test_the_state_is_complete(self, card: ModelCard, tmp_path: Path) -> None:
        """See `family.check_fresh_process`."""
        family.check_fresh_process(card, self.parameters, tmp_path)

    def test_requests_among_others_are_as_alone_and_nothing_is_hidden(self, card: ModelCard) -> None:
        """See `family.check_gate`."""
        family.check_gate(card, self.parameters)

    def test_a_cancelled_request_frees_what_it_held(self, card: ModelCard) -> None:
        """See `family.check_cancellation`."""
        family.check_cancellation(card, self.parameters)

    def test_costs_grow_and_are_near_what_is_counted(self, card: ModelCard) -> None:
        """See `family.check_costs`."""
        family.check_costs(card, self.parameters, self.larger, factor=self.cost_factor)

    def test_it_says_what_interceptors_will_meet(self, card: ModelCard) -> None:
        """See `kept.check_branches`."""
        kept.check_branches(card, self.parameters)

    def test_declared_parity_runs_and_holds(self, card: ModelCard) -> None:
        """See `family.check_parity`."""
        family.check_parity(card)

    def test_bad_input_is_refused_by_its_field(self, card: ModelCard) -> None:
        """See `family.check_bad_inputs`."""
        family.check_bad_inputs(card)


class _HookedContract:
    """What observers and interceptors have in common; the card may be overridden too, by any small one.

    Attributes:
        parameters: Parameters of the requests that are run.
    """

    parameters: ClassVar[Mapping[str, Any]] = {**SMALL, "num_inference_steps": 8}

    @pytest.fixture
    def card(self, tiny_card: ModelCard) -> ModelCard:
        """Return the card that it is tried on: the tiny family's."""
        return tiny_card

    @pytest.fixture
    def spec(self) -> Any:
        """Return its description."""
        raise pytest.UsageError("override the fixture `spec`")

    def test_the_description_and_its_options_are_right(self, spec: Any) -> None:
        """See `hooks.check_options`."""
        hooks.check_options(spec)

    def test_off_means_absent(self, spec: Any, card: ModelCard) -> None:
        """See `hooks.check_absent_when_off`."""
        hooks.check_absent_when_off(spec, card, self.parameters)

    def test_requests_among_others_are_as_alone(self, spec: Any, card: ModelCard) -> None:
        """See `hooks.check_hook_gate`."""
        hooks.check_hook_gate(spec, card, self.parameters)


class InterceptorContract(_HookedContract):
    """A step or block interceptor. Override the fixture `spec`: its `InterceptorSpec`."""

    def test_what_it_remembers_is_in_the_requests_state(self, spec: InterceptorSpec, card: ModelCard) -> None:
        """See `hooks.check_states`."""
        hooks.check_states(spec, card, self.parameters)

    def test_the_declared_error_holds(self, spec: InterceptorSpec, card: ModelCard) -> None:
        """See `hooks.check_declared_error`."""
        hooks.check_declared_error(spec, card, self.parameters)

    def test_exact_requests_are_exact(self, spec: InterceptorSpec, card: ModelCard) -> None:
        """See `hooks.check_exact`."""
        hooks.check_exact(spec, card, self.parameters)


class ObserverContract(_HookedContract):
    """An observer. Override the fixture `spec`: its `ObserverSpec`."""

    def test_it_changes_nothing(self, spec: ObserverSpec, card: ModelCard) -> None:
        """See `hooks.check_observer_reads_only`."""
        hooks.check_observer_reads_only(spec, card, self.parameters)

    def test_it_lives_through_failures_and_closes(self, spec: ObserverSpec, card: ModelCard) -> None:
        """See `hooks.check_observer_calls`."""
        hooks.check_observer_calls(spec, card, self.parameters)


class AttentionContract:
    """An attention backend. Override the fixture `spec`: its `AttentionBackendSpec`."""

    @pytest.fixture
    def spec(self) -> AttentionBackendSpec:
        """Return its description."""
        raise pytest.UsageError("override the fixture `spec`")

    def test_what_the_description_names_is_there(self, spec: AttentionBackendSpec) -> None:
        """See `attention.check_references`."""
        attention.check_references(spec)

    def test_it_attends(self, spec: AttentionBackendSpec) -> None:
        """See `attention.check_attention`."""
        if (reason := attention.why_not_here(spec)) is not None:
            pytest.skip(reason)
        attention.check_attention(spec)


class TransportContract:
    """A transport backend. Override the fixture `spec`: its `TransportSpec`."""

    @pytest.fixture
    def spec(self) -> TransportSpec:
        """Return its description."""
        raise pytest.UsageError("override the fixture `spec`")

    @pytest.fixture
    def make(self, spec: TransportSpec) -> Any:
        """Return what makes the transport, or skip where it cannot run."""
        if spec.available is not None and (reason := resolve_ref(spec.available)()) is not None:
            pytest.skip(reason)
        return resolve_ref(spec.implementation)

    def test_every_dtype_and_size_arrives(self, make: Any) -> None:
        """See `transport.check_tensors`."""
        transport.check_tensors(make)

    def test_messages_arrive_in_order(self, make: Any) -> None:
        """See `transport.check_order`."""
        transport.check_order(make)

    def test_both_ends_talk(self, make: Any) -> None:
        """See `transport.check_both_ways`."""
        transport.check_both_ways(make)

    def test_sender_and_receiver_share_no_memory(self, make: Any) -> None:
        """See `transport.check_copies`."""
        transport.check_copies(make)

    def test_waiting_ends_in_time(self, make: Any) -> None:
        """See `transport.check_timeouts`."""
        transport.check_timeouts(make)

    def test_a_closed_peer_is_told(self, make: Any) -> None:
        """See `transport.check_dead_peer`."""
        transport.check_dead_peer(make)

    def test_a_killed_peer_is_told(self, spec: TransportSpec, make: Any) -> None:
        """See `transport.check_killed_peer`."""
        transport.check_killed_peer(spec)

    def test_connecting_to_nobody_is_told(self, make: Any) -> None:
        """See `transport.check_nobody`."""
        transport.check_nobody(make)
