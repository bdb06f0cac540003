"""The parity obligations of a Wan card: which comparisons with independent implementations it declares."""

from __future__ import annotations

from fastvideo_core.card import ParityLevel, ParityTestSpec
from fastvideo_wan.cards.facts import WanFacts

__all__ = ["parity_tests"]

_CHECKS = "fastvideo_wan.parity.checks"


def parity_tests(facts: WanFacts) -> tuple[ParityTestSpec, ...]:
    """Return the comparisons of a checkpoint, lowest rung first."""
    tests = [
        _against_diffusers("text-encoder", "text_encoder", "check_text_encoder"),
        _against_diffusers("transformer", "transformer", "check_transformer"),
    ]
    if facts.boundary_ratio is not None:
        tests.append(_against_diffusers("transformer-2", "transformer_2", "check_transformer"))
    if facts.conditioning == "channels_and_vision":
        tests.append(_against_diffusers("image-encoder", "image_encoder", "check_image_encoder"))
    tests += [
        _against_diffusers("vae-encode", "vae", "check_vae_encode"),
        _against_diffusers("vae-decode", "vae", "check_vae_decode"),
    ]
    if facts.dmd_steps is not None:
        # The reference has no pipeline for these weights; the loop is held against the published formula.
        return (*tests, _loop_test(facts, "float64-formula", "check_few_step_loop", exact_bits=False))
    sampler = _against_diffusers("sampler-step", facts.sampler, "check_sampler_step")
    return (*tests, sampler, _loop_test(facts, "diffusers", "check_loop", exact_bits=True))


def _against_diffusers(test_id: str, subject: str, check: str) -> ParityTestSpec:
    return ParityTestSpec(
        test_id=test_id, level=ParityLevel.C0, subject=subject, reference="diffusers", check=f"{_CHECKS}:{check}"
    )


def _loop_test(facts: WanFacts, reference: str, check: str, *, exact_bits: bool) -> ParityTestSpec:
    return ParityTestSpec(
        test_id="loop",
        level=ParityLevel.C1,
        subject=facts.loop_id,
        reference=reference,
        check=f"{_CHECKS}:{check}",
        exact_bits=exact_bits,
    )
