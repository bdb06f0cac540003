"""Make the streams of an evaluation as sessions on the engine, and judge their chunks.

Shape letters: T, H, W frames, rows, columns; C colour channels.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastvideo_core.loop.chunks import PushText
from fastvideo_core.runtime.sessions import SessionOptions
from fastvideo_core.runtime.sessions.base import LoggedPush
from fastvideo_wan.shapes.evaluation import Case, score
from fastvideo_wan.shapes.judge import judge_clip
from fastvideo_wan.shapes.streams import Turn, draw_captions, draw_stream

if TYPE_CHECKING:
    from fastvideo_core.runtime.engine import Engine
    from fastvideo_core.runtime.sessions import Session

__all__ = ["StreamCase", "StreamMade", "judge_chunk", "make_streams", "stream_cases"]

MAX_SESSIONS = 4
"""Sessions that the engine has at a time, so that it can batch their chunks."""


@dataclass(frozen=True, slots=True)
class StreamCase:
    """A stream that is asked for with held-out prompts, one a turn, and the seed of its noise."""

    turns: tuple[Turn, ...]
    prompts: tuple[str, ...]
    seed: int

    def case(self, turn: int) -> Case:
        """Return one turn as what a clip is judged against."""
        return Case(self.prompts[turn], self.turns[turn].scene, self.seed)


@dataclass(frozen=True, slots=True)
class StreamMade:
    """A stream's frames, uint8 (T, H, W, C), chunk by chunk, and what it was made for."""

    case: StreamCase
    chunks: tuple[npt.NDArray[np.uint8], ...]


def stream_cases(num_cases: int, seed: int, turns: Sequence[int], *, changes: int | None = None) -> list[StreamCase]:
    """Return streams whose prompts' wording was never trained on; see `streams.draw_stream` for the arguments."""
    rng, cases = random.Random(f"streams/{seed}"), []
    for _ in range(num_cases):
        stream = draw_stream(rng, turns, changes=changes)
        prompts = draw_captions(stream, rng, is_held_out_wanted=True)
        cases.append(StreamCase(tuple(stream), tuple(prompts), rng.getrandbits(31)))
    return cases


def judge_chunk(frames_THWC: npt.NDArray[np.uint8], case: Case) -> dict[str, bool]:
    """Judge a chunk's frames, bytes, by itself."""
    return score([judge_clip(frames_THWC, is_wrapped=True)], case, num_frames=len(frames_THWC))


def make_streams(engine: Engine, cases: Sequence[StreamCase], num_chunks: int) -> Iterator[StreamMade]:
    """Yield each case's stream, in order.

    Args:
        engine: With a card that makes streams.
        cases: Prompts, when they change, and seeds.
        num_chunks: Length of each.

    Raises:
        InputError: The card's task takes other parameters.
        ExecutionError: A step failed.
    """
    waiting: list[tuple[StreamCase, Session]] = []
    for case in cases:
        waiting.append((case, _begin(engine, case, num_chunks)))
        if len(waiting) == MAX_SESSIONS:
            yield _read(*waiting.pop(0))
    for begun in waiting:
        yield _read(*begun)


def _begin(engine: Engine, case: StreamCase, num_chunks: int) -> Session:
    pushes = tuple(
        LoggedPush(_steps_before(engine, turn.first_chunk, number), PushText(prompt))
        for number, (turn, prompt) in enumerate(zip(case.turns[1:], case.prompts[1:], strict=True))
    )
    options = SessionOptions(num_chunks=num_chunks, buffer_s=1e9, replay=pushes)
    return engine.session(case.prompts[0], options=options, seed=case.seed)


def _steps_before(engine: Engine, chunk: int, num_pushes: int) -> int:
    """Return the steps that a stream has taken when a chunk begins.

    They are the first prompt's, those of each chunk (its levels, decoding, the commit pass), and those of each prompt
    that came later: encoding it, its keys and values, and reading the window anew.
    """
    options: dict[str, Any] = dict(engine.card.loops["chunk_rollout"].options)
    return 1 + chunk * (len(options["steps"]) + 2) + num_pushes * (2 + bool(options["has_reread"]))


def _read(case: StreamCase, session: Session) -> StreamMade:
    chunks = tuple(np.asarray(chunk.data) for chunk in session.chunks())
    return StreamMade(case, chunks)
