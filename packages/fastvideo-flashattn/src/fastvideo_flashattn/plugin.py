"""The plugin `attention.flash`. Imports neither torch nor flash-attn."""

from __future__ import annotations

from collections.abc import Sequence

from fastvideo_core.extend import AttentionBackendSpec, DoctorCheck, hookimpl

__all__ = ["FLASH", "FLASH2", "FLASH3", "attention_backends", "doctor_checks"]

HOOK_VERSIONS = ">=1.0,<2"


def _backend(name: str, summary: str) -> AttentionBackendSpec:
    return AttentionBackendSpec(
        name=name,
        implementation=f"fastvideo_flashattn.attention:{name}",
        summary=summary,
        devices=("cuda",),
        precisions=("bfloat16", "float16"),
        available=f"fastvideo_flashattn.availability:why_not_{name}",
    )


FLASH = _backend("flash", "flash-attn 3 where it can run, else 2")
FLASH2 = _backend("flash2", "flash-attn 2")
FLASH3 = _backend("flash3", "flash-attn 3, on Hopper")


@hookimpl
def attention_backends() -> Sequence[AttentionBackendSpec]:
    """Return the three backends."""
    return [FLASH, FLASH2, FLASH3]


@hookimpl
def doctor_checks() -> Sequence[DoctorCheck]:
    """Return a check a version."""
    return [
        DoctorCheck(f"flash-attn-{number}", f"fastvideo_flashattn.availability:report_flash{number}")
        for number in (2, 3)
    ]
