"""What a block cache remembers of a branch, and how one of the library's contexts is made of it and taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fastvideo_cachedit.forecasts import Course, calibrator_config, course_of, resume
from fastvideo_cachedit.library import CachedContext, DBCacheConfig
from fastvideo_cachedit.masks import mask_from
from fastvideo_cachedit.options import BlockOptions
from fastvideo_core.loop.state import PluginState

__all__ = ["FIRST", "REST", "BlockState", "make_context", "state_of"]

FIRST = "blocks_Fn_residual"
"""The library's name of what the first blocks add."""

REST = "blocks_Bn_residual"
"""The library's name of what the blocks after them add."""


@dataclass(frozen=True, slots=True)
class BlockState(PluginState):
    """What a block cache remembers of a branch of one request in one component.

    Attributes:
        begin: The first prediction that it was there for.
        last: The last one.
        reused: Predictions whose blocks were not all computed, counted from `begin`.
        num_continuous: How many of them were the last ones.
        first_added: What the first blocks added when all were computed last.
        rest_added: What the blocks after them added then; None where `course` has it.
        course: What the forecast remembers of that.
    """

    schema_version: ClassVar[int] = 1

    begin: int
    last: int
    reused: tuple[int, ...]
    num_continuous: int
    first_added: Tensor | None
    rest_added: Tensor | None
    course: Course | None


def make_context(
    options: BlockOptions, state: BlockState | None, index: int, mask: tuple[int, ...] | None
) -> CachedContext:
    """Return a context of the library that stands before a prediction.

    Args:
        options: The request's options.
        state: What the branch remembers; None if it begins.
        index: Which prediction it is.
        mask: Which predictions of the request are computed.
    """
    begin = index if state is None else state.begin
    context = CachedContext(
        cache_config=_config(options, None if mask is None else mask_from(mask, begin, options.warmup_steps)),
        calibrator_config=calibrator_config(options.forecast, options.taylor_order),
    )
    if state is None:
        return context
    context.executed_steps = context.transformer_executed_steps = index - begin
    context.cached_steps = list(state.reused)
    context.continuous_cached_steps = state.num_continuous
    for name, added in ((FIRST, state.first_added), (REST, state.rest_added)):
        if added is not None:
            context.set_buffer(f"{name}_buffer", added)
    if state.course is not None:
        resume(context.calibrator, REST, state.course, index - state.last - 1)
    return context


def state_of(context: CachedContext, begin: int, index: int) -> BlockState:
    """Return what a branch remembers after a prediction.

    Args:
        context: The context, which is not used after this.
        begin: The first prediction that it was there for.
        index: Which prediction it was.
    """
    return BlockState(
        begin=begin,
        last=index,
        reused=tuple(context.cached_steps),
        num_continuous=context.continuous_cached_steps,
        first_added=context.get_buffer(f"{FIRST}_buffer"),
        rest_added=context.get_buffer(f"{REST}_buffer"),
        course=course_of(context.calibrator, REST),
    )


def _config(options: BlockOptions, mask: tuple[int, ...] | None) -> DBCacheConfig:
    """Return the library's settings. Branches have contexts of their own, so that none is told from calls."""
    return DBCacheConfig(
        Fn_compute_blocks=options.first_blocks,
        Bn_compute_blocks=options.last_blocks,
        residual_diff_threshold=options.threshold,
        max_warmup_steps=options.warmup_steps,
        max_cached_steps=_limit(options.max_cached_steps),
        max_continuous_cached_steps=_limit(options.max_continuous_cached_steps),
        enable_separate_cfg=False,
        num_inference_steps=None,
        steps_computation_mask=None if mask is None else list(mask),
        steps_computation_policy=options.mask_policy,
    )


def _limit(value: int | None) -> int:
    return -1 if value is None else value
