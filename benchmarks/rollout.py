"""Rollouts on the serving engine against a plain loop over the same model, and what training asks of the engine.

    rollout_gain_24         samples a second of a group of 24 on the engine over those of a plain loop that makes one
                            sample after the other with the same weights: encodes the prompt, and takes the steps, with
                            the transformer's plain forward, operation by operation as the reference has it
    gain_guided_24          the same with the card's own guidance: two forwards a step in the plain loop
    gain_over_fast_loop     the first one over a loop with the transformer's fast forward, which the engine uses too:
                            what is left is the batch and the shared prompt
    gain_low, gain_high     quartiles of the first one over the rounds
    text_encodes_per_group  prompts that the text encoder encodes for a group
    capture_overhead        seconds of the group's denoise steps with records over those without, less 1
    sync_pause_ratio        seconds in which no request starts while new weights come in, a group of 24 half-way, over
                            the seconds of one of the group's steps
    private_loops           loops in fastvideo_rl that take a model's predictions step by step

wan-shapes at its default size, Euler's method or (for the records) the stochastic one, conditional branch alone; the
result is latents, so that nothing is decoded. Cases run in turn in one process; the plain loops make a few samples a
round, so that a round is short, and a gain is the median over rounds of the ratio within one: what slows a machine for
a while slows both sides of it.
"""

from __future__ import annotations

import ast
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from _common import Case, interleaved, make_parser, paired_ratios, positive, report
from _shapes import prompts
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.loop.samplers import ScheduleSpec, get_sampler
from fastvideo_core.loop.work import WorkKind
from fastvideo_core.parallel.threads import release_team
from fastvideo_core.runtime.engine import Engine, RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_rl.program import TrainingProgram
from fastvideo_rl.rollout.roller import GroupPlan, Roller
from fastvideo_rl.sync import WeightSyncPlan, sync_weights

NUM_PLAIN = 6
"""Samples that a plain loop makes a round; what one takes does not depend on how many there are."""

CALLS = {"advance", "predict", "step"}
"""Calls that take a model's prediction a step further."""


@dataclass
class Steps:
    """What ran: seconds of each call of denoise steps, and rows of the text encoder."""

    seconds: list[float] = field(default_factory=list)
    num_encodes: int = 0


@contextmanager
def watched(engine: Engine) -> Iterator[Steps]:
    """Note what the engine's step bodies do."""
    seen, bodies = Steps(), dict(engine.instance.steps)

    def watch(body: Any) -> Any:
        def run(instance: Any, plans: Any, ctx: Any) -> Any:
            started_at = time.perf_counter()
            results = body(instance, plans, ctx)
            if plans[0].kind is WorkKind.DIFFUSION_STEP:
                seen.seconds.append(time.perf_counter() - started_at)
            elif plans[0].loop_id == "text_encode":
                seen.num_encodes += len(plans)
            return results

        return run

    engine.instance.steps.update({name: watch(body) for name, body in bodies.items()})
    try:
        yield seen
    finally:
        engine.instance.steps.update(bodies)


class Bench:
    """The engine, the group, and the plain loop beside it."""

    def __init__(self, engine: Engine, *, group_size: int, num_steps: int) -> None:
        self.engine = engine
        self.group_size = group_size
        self.num_steps = num_steps
        self.roller = Roller(engine, TrainingProgram.of(engine.card))
        defaults = engine.card.task(self.roller.program.task).defaults()
        self.guidance_scale = float(defaults["guidance_scale"])  # type: ignore[arg-type]
        self._count = 0
        self._prompts = prompts(seed=7)

    def plan(self, sampler: str, *, is_guided: bool = False) -> GroupPlan:
        """Return a group with seeds and a prompt that no group before it had."""
        self._count += 1
        seeds = tuple(range(self._count * 1000, self._count * 1000 + self.group_size))
        scale = self.guidance_scale if is_guided else 1.0
        parameters = {"sampler": sampler, "guidance_scale": scale, "num_inference_steps": self.num_steps}
        return GroupPlan(next(self._prompts), seeds, parameters)

    def group(self, sampler: str = "flow_euler", *, is_guided: bool = False) -> None:
        """Roll a group out."""
        (group,) = self.roller.run([self.plan(sampler, is_guided=is_guided)])
        assert group.reason is None, group.reason

    def served(self, sampler: str) -> None:
        """Serve the same requests, without records."""
        plan = self.plan(sampler)
        requests = [
            self.engine.make_request(plan.prompt, outputs=("latents",), parameters={**plan.parameters, "seed": seed})
            for seed in plan.seeds
        ]
        with self.engine.paused():
            handles = [self.engine.submit(request) for request in requests]
        for handle in handles:
            handle.result()

    def plain(self, *, is_exact: bool = True, is_guided: bool = False) -> None:
        """Make the first of the group's samples with a loop over the bare model, and give its threads back.

        Two threads that compute have a team of OpenMP threads each, and once both are there every operation of either
        has to wake its own (see `fastvideo_core.parallel.threads`): the engine would pay for the loop before it.
        """
        self._loop(is_exact=is_exact, is_guided=is_guided)
        release_team()

    @torch.no_grad()
    def _loop(self, *, is_exact: bool, is_guided: bool) -> None:
        """Make samples one after the other."""
        plan, instance = self.plan("flow_euler"), self.engine.instance
        defaults = self.engine.card.task(self.roller.program.task).defaults()
        vae, length = instance.config("vae"), int(self.engine.card.loops["text_encode"].options["text_length"])
        frames = (int(defaults["num_frames"]) - 1) // vae.temporal_factor + 1  # type: ignore[arg-type]
        rows, columns = (int(defaults[name]) // vae.spatial_factor for name in ("height", "width"))  # type: ignore[arg-type]
        sampler = get_sampler("flow_euler")
        spec = ScheduleSpec(self.num_steps, shift=float(defaults["flow_shift"]))  # type: ignore[arg-type]
        schedule = sampler.make_schedule(spec)
        encoder, transformer = instance.component("text_encoder"), instance.component("transformer")
        for seed in plan.seeds[:NUM_PLAIN]:
            contexts = []
            for text in (plan.prompt, "")[: 1 + is_guided]:
                ids = torch.tensor([instance.component("tokenizer").encode(text)])
                embeds = encoder(ids, torch.ones_like(ids)).last_hidden_state
                embeds = torch.nn.functional.pad(embeds, (0, 0, 0, length - embeds.shape[1]))
                contexts.append(transformer.prepare_context(embeds, exact=is_exact))
            generator = torch.Generator().manual_seed(seed)
            sample = torch.randn(1, vae.z_dim, frames, rows, columns, generator=generator)
            for index in range(self.num_steps):
                times = schedule.timesteps[index : index + 1]
                velocity, *others = [transformer(sample, times, context, exact=is_exact) for context in contexts]
                for other in others:
                    velocity = other + self.guidance_scale * (velocity - other)
                sample, _ = sampler.step(schedule, sampler.init_state(schedule), velocity, sample, index)

    def gains(self, num_rounds: int) -> dict[str, float]:
        """Return samples a second of groups over those of plain loops."""
        cases: dict[str, Case] = {
            "engine": self.group,
            "plain": self.plain,
            "fast": partial(self.plain, is_exact=False),
            "guided": partial(self.group, is_guided=True),
            "plain_guided": partial(self.plain, is_guided=True),
        }
        times = interleaved(cases, num_rounds=num_rounds)
        samples = self.group_size / min(self.group_size, NUM_PLAIN)
        gains = {
            name: [samples * one for one in paired_ratios(times, theirs, ours)]
            for name, theirs, ours in (
                ("rollout_gain_24", "plain", "engine"),
                ("gain_guided_24", "plain_guided", "guided"),
                ("gain_over_fast_loop", "fast", "engine"),
            )
        }
        low, _, high = statistics.quantiles(gains["rollout_gain_24"] * 2, n=4)
        return {
            **{name: statistics.median(found) for name, found in gains.items()},
            "gain_low": low,
            "gain_high": high,
            "samples_per_s": self.group_size / statistics.median(times["engine"]),
        }

    def capture_overhead(self, num_rounds: int) -> float:
        """Return by how much records lengthen the denoise steps of a group, median over rounds."""
        ratios = []
        for _ in range(num_rounds):
            with watched(self.engine) as with_records:
                self.group("sde")
            with watched(self.engine) as without:
                self.served("sde")
            ratios.append(statistics.median(with_records.seconds) / statistics.median(without.seconds) - 1)
        return statistics.median(ratios)

    def text_encodes(self) -> int:
        """Return how many prompts are encoded for a group whose prompt is new."""
        with watched(self.engine) as seen:
            (group,) = self.roller.run([self.plan("flow_euler")])
        assert group.reason is None, group.reason
        return seen.num_encodes

    def sync_pause_ratio(self, num_rounds: int) -> float:
        """Return how long a sync keeps requests from starting, in steps of a group that is half-way; median."""
        ratios = []
        own = self.engine.instance.component("transformer").state_dict()
        for index in range(num_rounds):
            tensors = {name: tensor.clone() for name, tensor in own.items()}
            with watched(self.engine) as seen:
                (pending,) = self.roller.submit([self.plan("flow_euler")])
                while not seen.seconds:
                    time.sleep(0.001)
                plan = WeightSyncPlan("student", "transformer", mode="restart")
                done = sync_weights(plan, self.engine, tensors, f"bench-{index}-{threading.get_ident()}")
                pending.result()
            ratios.append(done.pause_s / statistics.median(seen.seconds))
        return statistics.median(ratios)


def private_loops() -> list[str]:
    """Return places in fastvideo_rl where a loop takes predictions step by step."""
    spec = find_spec("fastvideo_rl")
    assert spec is not None and spec.origin is not None
    found = []
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
                calls = [call.func for part in node.body for call in ast.walk(part) if isinstance(call, ast.Call)]
                names = {func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "") for func in calls}
                if names & CALLS:
                    found.append(f"{path.name}:{node.lineno}")
    return found


def main() -> None:
    """Measure, and print the figures."""
    parser = make_parser("Rollouts on the serving engine against a plain loop.", num_rounds=5)
    parser.add_argument("--group", type=positive, default=24, help="samples of a group (default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=8, help="denoising steps (default: %(default)s)")
    args = parser.parse_args()
    config = SchedulerConfig(max_running=2 * args.group, max_batch=max(args.group, 2))
    extensions = Extensions.load({"sampler.sde": {}}, strict=True)
    with Engine.open("wan-shapes", extensions=extensions, options=RuntimeOptions(scheduler=config)) as engine:
        bench = Bench(engine, group_size=args.group, num_steps=args.steps)
        figures = {
            **bench.gains(args.rounds),
            "text_encodes_per_group": bench.text_encodes(),
            "capture_overhead": bench.capture_overhead(args.rounds),
            "sync_pause_ratio": bench.sync_pause_ratio(args.rounds),
            "private_loops": len(private_loops()),
        }
    report(figures, as_json=args.json)


if __name__ == "__main__":
    main()
