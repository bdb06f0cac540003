"""The block cache: DBCache, FBCache and TaylorSeer, decided and computed by the library, branch by branch.

The first blocks run for every branch. What they add tells the library whether the branch has changed much since all of
its blocks were computed; if not, what the others added then is used again, or carried on by a forecast. The blocks
of all branches that are to be computed run as rows of one call.

Shape letters: R branches of a request; S tokens; D stream width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fastvideo_cachedit.library import CachedContext, Manager
from fastvideo_cachedit.masks import mask_of, place_of
from fastvideo_cachedit.options import BlockOptions
from fastvideo_cachedit.state import FIRST, REST, BlockState, make_context, state_of
from fastvideo_core.errors import ParameterError
from fastvideo_core.loop.hooks import BlockCall, BlockOutcome, BranchesOutcome, SelectRows

__all__ = ["BlockCache"]


class BlockCache:
    """Runs blocks, or uses again what they added.

    Args:
        options: The deploy config's options; each call brings those of its request.
    """

    def __init__(self, options: BlockOptions) -> None:
        self._options = options

    def run_blocks(
        self, call: BlockCall, state: BlockState | None, blocks: Sequence[Any], hidden: Tensor, *inputs: Any
    ) -> BlockOutcome:
        """Go through the blocks for one branch; see `BlockInterceptor`."""
        outcome = self.run_branches([call], [state], blocks, hidden, lambda _: inputs, *inputs)
        return BlockOutcome(outcome.hidden, outcome.states[0], outcome.computed_share)

    def run_branches(
        self,
        calls: Sequence[BlockCall],
        states: Sequence[BlockState | None],
        blocks: Sequence[Any],
        hidden: Tensor,
        select: SelectRows,
        *inputs: Any,
    ) -> BranchesOutcome:
        """Go through the blocks with a row for each branch; see `BranchesInterceptor`."""
        options: BlockOptions = calls[0].options
        _check_blocks(options, len(blocks))
        index, num_predictions = place_of(calls[0].step, calls[0])
        mask = mask_of(options.mask, num_predictions)
        contexts = [make_context(options, state, index, mask) for state in states]
        num_first, num_rest = options.first_blocks, len(blocks) - options.last_blocks
        first_RSD = _through(blocks[:num_first], hidden, inputs)
        computed = _rows_to_compute(contexts, hidden, first_RSD)
        rest_RSD = _rest(contexts, computed, blocks[num_first:num_rest], first_RSD, select)
        after_RSD = _through(blocks[num_rest:], rest_RSD, inputs)
        begins = [index if state is None else state.begin for state in states]
        new = [state_of(context, begin, index) for context, begin in zip(contexts, begins, strict=True)]
        num_run = len(calls) * (num_first + options.last_blocks) + len(computed) * (num_rest - num_first)
        return BranchesOutcome(after_RSD, new, num_run / (len(calls) * len(blocks)))


def _check_blocks(options: BlockOptions, num_blocks: int) -> None:
    most = options.first_blocks + options.last_blocks
    if most > num_blocks:
        raise ParameterError(
            f"first_blocks and last_blocks are {most} together, and the model has {num_blocks} blocks",
            field="plugins.interceptor.cachedit.first_blocks",
            value=options.first_blocks,
            allowed=f"1 to {num_blocks - options.last_blocks}" if options.last_blocks < num_blocks else "fewer of both",
        )


def _through(blocks: Sequence[Any], hidden: Tensor, inputs: tuple[Any, ...]) -> Tensor:
    for block in blocks:
        hidden = block(hidden, *inputs)
    return hidden


def _rows_to_compute(contexts: Sequence[CachedContext], hidden: Tensor, first_RSD: Tensor) -> list[int]:
    """Let the library decide for each branch whether all blocks have to run, and keep what the first ones added."""
    before = hidden.expand(len(contexts), *hidden.shape[1:]).split(1)
    rows = zip(contexts, before, first_RSD.split(1), strict=True)
    return [row for row, (context, old, new) in enumerate(rows) if _has_to_run(context, new - old)]


def _has_to_run(context: CachedContext, added_1SD: Tensor) -> bool:
    manager = _manager(context)
    manager.mark_step_begin()
    if manager.can_cache(added_1SD, prefix=FIRST):
        manager.add_cached_step()
        return False
    manager.set_Fn_buffer(added_1SD, prefix=FIRST)
    return True


def _rest(
    contexts: Sequence[CachedContext],
    computed: Sequence[int],
    blocks: Sequence[Any],
    first_RSD: Tensor,
    select: SelectRows,
) -> Tensor:
    """Return the stream before the last blocks: computed for some branches, used again for the others."""
    is_whole = len(computed) == len(contexts)
    rows: list[Tensor] = list(first_RSD.split(1))
    if computed:
        start = first_RSD if is_whole else torch.cat([rows[row] for row in computed])
        ran = _through(blocks, start, select(computed) if blocks else ())
        for place, row in enumerate(computed):
            _manager(contexts[row]).set_Bn_buffer(ran[place : place + 1] - rows[row], prefix=REST)
            rows[row] = ran[place : place + 1]
        if is_whole:
            return ran
    for row, context in enumerate(contexts):
        if row not in computed:
            rows[row], _ = _manager(context).apply_cache(rows[row], prefix=REST)
    return torch.cat(rows)


def _manager(context: CachedContext) -> Any:
    manager = Manager("blocks")
    manager.set_context(context)
    return manager
