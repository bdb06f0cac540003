"""The parity obligations of a Cosmos3 card: which comparisons with independent implementations it declares."""

from __future__ import annotations

from fastvideo_core.card import ParityLevel, ParityTestSpec
from fastvideo_cosmos3.cards.facts import Cosmos3Facts

__all__ = ["parity_tests"]

_PARTS, _TASKS = "fastvideo_cosmos3.parity.parts", "fastvideo_cosmos3.parity.tasks"


def parity_tests(facts: Cosmos3Facts) -> tuple[ParityTestSpec, ...]:
    """Return the comparisons of a checkpoint, lowest rung first."""
    tests = [
        _part("transformer", "transformer", "diffusers", "check_transformer"),
        _part("vae-encode", "vae", "diffusers", "check_vae_encode"),
        _part("vae-decode", "vae", "diffusers", "check_vae_decode"),
        _part("sampler-step", facts.sampler, "diffusers", "check_sampler_step"),
        _part("reasoner", "transformer", "transformers", "check_reasoner"),
    ]
    if facts.has_sound:
        tests.append(_part("sound-decode", "sound_tokenizer", "diffusers", "check_sound_decode"))
    if facts.has_vision:
        tests.append(_part("vision", "vision_encoder", "transformers", "check_vision"))
    tests += [
        _loop("tasks", "diffusion_denoise", "diffusers", "check_tasks", exact_bits=True),
        # A token at a time is another order of operations than the reference's, which reads what it has written anew.
        _loop("answers", "ar_decode", "transformers", "check_answers", exact_bits=False),
    ]
    if facts.has_sound:
        tests.append(_loop("omni", "diffusion_denoise", "diffusers", "check_omni", exact_bits=False))
    return tuple(tests)


def _part(test_id: str, subject: str, reference: str, check: str) -> ParityTestSpec:
    return ParityTestSpec(
        test_id=test_id, level=ParityLevel.C0, subject=subject, reference=reference, check=f"{_PARTS}:{check}"
    )


def _loop(test_id: str, loop: str, reference: str, check: str, *, exact_bits: bool) -> ParityTestSpec:
    return ParityTestSpec(
        test_id=test_id,
        level=ParityLevel.C1,
        subject=loop,
        reference=reference,
        check=f"{_TASKS}:{check}",
        exact_bits=exact_bits,
    )
