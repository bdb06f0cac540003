"""Which steps are computed, where that is fixed beforehand."""

from __future__ import annotations

from fastvideo_cachedit.library import steps_mask
from fastvideo_cachedit.options import Mask
from fastvideo_core.errors import PluginError
from fastvideo_core.loop.hooks import BlockCall, Prediction, StepView

__all__ = ["mask_from", "mask_of", "place_of"]


def mask_of(mask: Mask, num_steps: int | None) -> tuple[int, ...] | None:
    """Return 1 for each step that is computed and 0 for each that is not; None without a mask.

    Args:
        mask: A preset, or the numbers themselves.
        num_steps: Steps of the request; a preset is the library's for this many.

    Raises:
        PluginError: It does not fit the steps, or nobody knows how many there are.
    """
    if mask is None:
        return None
    if num_steps is None:
        raise PluginError("a mask is for loops that know how many steps they take, which this one does not")
    if isinstance(mask, str):
        return tuple(steps_mask(total_steps=num_steps, mask_policy=mask))
    if len(mask) != num_steps:
        raise PluginError(f"the mask has {len(mask)} numbers, and the loop makes {num_steps} predictions")
    return mask


def mask_from(mask: tuple[int, ...], begin: int, num_first: int) -> tuple[int, ...]:
    """Return what a mask says to somebody who comes in later: an expert, or a branch of guidance.

    It computes as many steps first as the mask does, but no more than `num_first`, and at least one.
    The first number is that of step `begin`.

    Args:
        mask: The mask of the whole request.
        begin: The step at which it comes in.
        num_first: Most steps that it computes before it keeps to the mask.
    """
    if begin == 0:
        return mask
    leading = next((index for index, one in enumerate(mask) if one == 0), len(mask))
    first = max(1, min(leading, num_first))
    return (1,) * min(first, len(mask) - begin) + mask[begin + first :]


def place_of(step: StepView, wanted: Prediction | BlockCall) -> tuple[int, int | None]:
    """Return which prediction it is and how many there are; where the family does not say, each step makes one."""
    if wanted.index is None:
        return step.step_index, step.num_steps
    return wanted.index, wanted.num_predictions
