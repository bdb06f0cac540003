"""What the server costs and keeps: latency over the engine's own, events, jobs, dropped calls.

added_latency_p95_ms    an image over HTTP (one client, one connection), less the median of the same in a process:
                        the 95th percentile; a tiny card, so that little but the path is measured
http_p50_ms, engine_p50_ms    both sides' medians
create_p50_ms           a job's creation until it is promised: six writes that reach the disk
events_lost             events that 200 concurrent readers of event streams did not get, of events_read
jobs_lost               jobs of 32 clients submitting at once that were not completed, of jobs_submitted
fair_share_min          while all of four keys had jobs waiting, one with half of them all: the smallest part of its
                        fair share that a key got
cancel_steps_max        500 synchronous calls of wan-shapes, dropped by the client: most steps of one that began after
                        its client had closed the connection
cancel_ended_max        the same, of steps that ended after it: with the one that was in progress, which no runtime
                        takes back from a device
"""

from __future__ import annotations

import asyncio
import base64
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import torch

from _common import make_parser, positive, report, time_s
from _server import count_lost, in_process, in_thread, open_call, settings, submit_all, wan_shapes
from fastvideo_core import Engine
from fastvideo_core.request.media.stills import encode_still
from fastvideo_server.jobs.live import LiveJob
from fastvideo_testing.tiny import write_tiny_checkpoint

QUICK = {"num_inference_steps": 2, "num_frames": 1}
READERS_PER_JOB = 20
JOBS_PER_CLIENT = 3
DROPPED_AT_A_TIME = 4


def main() -> None:
    """Run everything and print the figures."""
    parser = make_parser(__doc__.splitlines()[0] if __doc__ else "", num_rounds=200)
    parser.add_argument("--readers", type=positive, default=200, help="event streams (default: %(default)s)")
    parser.add_argument("--clients", type=positive, default=32, help="clients at once (default: %(default)s)")
    parser.add_argument("--dropped", type=positive, default=500, help="calls dropped (default: %(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = folder / "tiny"
        weights.mkdir()
        card = write_tiny_checkpoint(weights)
        figures: dict[str, Any] = {}
        with Engine.open(card) as engine, in_process(weights, folder / "one") as url:
            figures |= measure_latency(engine, url, args.rounds)
            num_jobs = -(-args.readers // READERS_PER_JOB)
            lost, read = asyncio.run(
                count_lost(url, num_jobs=num_jobs, readers_per_job=min(args.readers, READERS_PER_JOB), num_steps=200)
            )
            figures |= {"events_lost": lost, "events_read": read}
        with in_process(weights, folder / "two", with_keys=True) as url:
            submitted = asyncio.run(submit_all(url, num_clients=args.clients, jobs_per_client=JOBS_PER_CLIENT))
            figures |= {
                "jobs_lost": submitted["jobs_lost"],
                "jobs_submitted": args.clients * JOBS_PER_CLIENT,
                "jobs_per_s": args.clients * JOBS_PER_CLIENT / submitted["seconds"],
                "fair_share_min": submitted["fair_share_min"],
            }
        figures |= measure_dropped(folder / "three", args.dropped)
    report(figures, as_json=args.json)


def measure_latency(engine: Engine, url: str, num_rounds: int) -> dict[str, float]:
    """Time the same image over HTTP and in this process, in turn."""
    with httpx2.Client(base_url=url, timeout=60) as client:

        def over_http() -> None:
            answer = client.post("/v1/images/generations", json={"prompt": "x", "seed": 1, **QUICK})
            answer.raise_for_status()
            base64.b64decode(answer.json()["data"][0]["b64_json"])

        def in_engine() -> None:
            video = engine.generate("x", seed=1, num_inference_steps=2, num_frames=1).video
            base64.b64encode(encode_still(video.frames[0], ".png", video.provenance))

        def creation() -> None:
            client.post("/v1/videos", json={"prompt": "x", "seed": 1, **QUICK}).raise_for_status()

        cases: dict[str, Callable[[], None]] = {"http": over_http, "engine": in_engine}
        for case in cases.values():
            for _ in range(10):
                case()
        times: dict[str, list[float]] = {name: [] for name in (*cases, "create")}
        for _ in range(num_rounds):
            for name, case in cases.items():
                times[name].append(time_s(case))
        for _ in range(min(num_rounds, 20)):
            times["create"].append(time_s(creation))
            time.sleep(0.05)
    base_s = statistics.median(times["engine"])
    added = sorted(seconds - base_s for seconds in times["http"])
    return {
        "added_latency_p95_ms": 1e3 * added[int(0.95 * (len(added) - 1))],
        "http_p50_ms": 1e3 * statistics.median(times["http"]),
        "engine_p50_ms": 1e3 * base_s,
        "create_p50_ms": 1e3 * statistics.median(times["create"]),
    }


def measure_dropped(folder: Path, num_calls: int) -> dict[str, Any]:
    """Drop calls in the middle, and count the steps that began, and that ended, after that."""
    begun: dict[str, list[float]] = {}
    prompts: dict[str, str] = {}
    ended: dict[str, list[float]] = {}
    closed_at: dict[str, tuple[float, float]] = {}
    with in_thread(wan_shapes(), settings(folder, with_keys=False)) as (url, parts):
        service = parts.service

        def note_begin(job_ids: tuple[str, ...], now: float) -> None:
            for job_id in job_ids:
                begun.setdefault(job_id, []).append(now)

        def note_end(job: LiveJob, _: Exception | None) -> None:
            events = [] if job.handle is None else job.handle.stream.read()
            prompts[job.record.prompt] = job.job_id
            ended[job.record.prompt] = [event.time_s for event in events if event.type == "request.progress"]

        parts.watch.on_begin.append(note_begin)
        service.on_end.append(note_end)

        def drop(number: int) -> None:
            prompt = f"a red circle {number}"
            fields = {"prompt": prompt, "num_inference_steps": 1000, "size": "96x96", "seed": number}
            connection = open_call(url, fields)
            time.sleep(0.05 + 0.001 * (number % 97))
            connection.close()
            closed_at[prompt] = time.monotonic(), time.time()

        for first in range(0, num_calls, DROPPED_AT_A_TIME):
            numbers = range(first, min(first + DROPPED_AT_A_TIME, num_calls))
            threads = [threading.Thread(target=drop, args=(number,)) for number in numbers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        deadline = time.monotonic() + 60
        while service.num_unfinished and time.monotonic() < deadline:
            time.sleep(0.01)
        left = service.num_unfinished
    after = [sum(at > closed_at[prompt][0] for at in begun.get(job, ())) for prompt, job in prompts.items()]
    through = [sum(at > closed_at[prompt][1] for at in times) for prompt, times in ended.items()]
    assert sum(map(len, begun.values())), "no call got as far as a step"
    return {
        "cancel_steps_max": max(after),
        "cancel_steps_mean": statistics.fmean(after),
        "cancel_ended_max": max(through),
        "calls_dropped": len(after),
        "calls_left": left,
    }


if __name__ == "__main__":
    main()
