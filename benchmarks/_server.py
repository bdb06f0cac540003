"""Servers for the benchmark of the server: one in a process of its own, and the load that clients put on it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from fastvideo_core.card import ModelCard
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import RuntimeOptions
from fastvideo_core.runtime.scheduler.base import SchedulerConfig
from fastvideo_server.config import KeyConfig, ServerConfig
from fastvideo_server.http.app import create_app
from fastvideo_server.http.parts import Parts
from fastvideo_server.protocol import DrainingServer, uvicorn_config
from fastvideo_server.serve import open_parts
from fastvideo_testing.tiny import tiny_card

__all__ = ["KEYS", "count_lost", "in_process", "in_thread", "open_call", "submit_all"]

KEYS = ("ann", "bob", "cid", "dan")
MAX_RUNNING = 4
MAX_CONNECTIONS = 4000


def settings(folder: Path, *, with_keys: bool) -> ServerConfig:
    """Return the settings of a server under load."""
    keys = [
        KeyConfig(
            name=name,
            sha256=hashlib.sha256(name.encode()).hexdigest(),
            max_queued=10_000,
            requests_per_minute=1_000_000,
        )
        for name in KEYS
    ]
    return ServerConfig(
        folder=folder,
        port=0,
        keys=tuple(keys) if with_keys else (),
        max_queued=10_000,
        max_connections=MAX_CONNECTIONS,
    )


@contextmanager
def in_thread(card: ModelCard, config: ServerConfig) -> Iterator[tuple[str, Parts]]:
    """Run a server on a thread; gives its address and its parts."""
    options = RuntimeOptions(SchedulerConfig(max_running=MAX_RUNNING), memory_bytes=2 << 30)
    with open_parts(config, card, options=options) as parts:
        listening, addresses = threading.Event(), list[str]()

        def tell(address: str) -> None:
            addresses.append(address)
            listening.set()

        server = DrainingServer(uvicorn_config(create_app(parts), config), parts.service.drain, tell)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            assert listening.wait(60)
            yield addresses[0], parts
        finally:
            server.stop()
            thread.join()


@contextmanager
def in_process(weights: Path, folder: Path, *, with_keys: bool = False) -> Iterator[str]:
    """Run a server with a tiny card in a process of its own; gives its address."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(weights, folder, with_keys, there))
    process.start()
    try:
        yield here.recv()
    finally:
        here.send("stop")
        process.join(60)


def _serve(weights: Path, folder: Path, with_keys: bool, pipe: Any) -> None:
    import torch

    torch.set_num_threads(1)
    with in_thread(tiny_card(weights), settings(folder, with_keys=with_keys)) as (url, _):
        pipe.send(url)
        pipe.recv()


def wan_shapes() -> ModelCard:
    """Return the card that ships with the project."""
    return Catalog.installed().find("wan-shapes")


async def count_lost(url: str, *, num_jobs: int, readers_per_job: int, num_steps: int) -> tuple[int, int]:
    """Follow jobs by many readers at once.

    Returns:
        Events that readers did not get, and those that they got.
    """
    fields = {"prompt": "x", "num_inference_steps": num_steps, "num_frames": 1, "height": 16, "width": 16}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        made = [await client.post("/v1/videos", json=fields) for _ in range(num_jobs)]
        ids = [answer.json()["id"] for answer in made]
        readers = [_follow(client, video_id) for video_id in ids for _ in range(readers_per_job)]
        results = await asyncio.gather(*readers)
    # Every job has the same events; who has fewer has lost some.
    longest = max(map(len, results))
    lost = sum(len(set(range(longest)) - set(numbers)) for numbers in results)
    return lost, sum(map(len, results))


async def _follow(client: httpx2.AsyncClient, video_id: str) -> list[int]:
    async with client.stream("GET", f"/v1/videos/{video_id}/events") as response:
        return [int(line.rpartition(".")[2]) async for line in response.aiter_lines() if line.startswith("id: ")]


async def submit_all(url: str, *, num_clients: int, jobs_per_client: int) -> dict[str, Any]:
    """Let many clients hand in jobs at once, each under one of the keys; the first key has as many as all others.

    Returns:
        Jobs lost, seconds, and the smallest share of a key beside its fair one while all keys had jobs waiting.
    """
    fields = {"prompt": "x", "num_inference_steps": 4, "num_frames": 1, "height": 16, "width": 16}
    owners = [KEYS[0] if index % 2 else KEYS[1 + index // 2 % 3] for index in range(num_clients)]
    limits = httpx2.Limits(max_connections=None)
    begun_at = time.perf_counter()
    async with httpx2.AsyncClient(base_url=url, timeout=300, limits=limits) as client:

        async def hand_in(owner: str) -> list[tuple[str, str]]:
            headers = {"Authorization": f"Bearer {owner}"}
            answers = [await client.post("/v1/videos", json=fields, headers=headers) for _ in range(jobs_per_client)]
            return [(owner, answer.json()["id"]) for answer in answers if answer.status_code == 200]

        accepted = [job for jobs in await asyncio.gather(*map(hand_in, owners)) for job in jobs]
        done: list[str] = []

        async def finish(owner: str, video_id: str) -> bool:
            headers = {"Authorization": f"Bearer {owner}"}
            async with client.stream("GET", f"/v1/videos/{video_id}/events", headers=headers) as response:
                kinds = [line async for line in response.aiter_lines() if line.startswith("event: ")]
            done.append(owner)
            answer = await client.get(f"/v1/videos/{video_id}", headers=headers)
            return kinds[-1:] == ["event: request.completed"] and answer.json()["status"] == "completed"

        results = await asyncio.gather(*(finish(*job) for job in accepted))
    expected = num_clients * jobs_per_client
    fewest = min(owners.count(owner) for owner in KEYS) * jobs_per_client
    contested = done[: fewest * len(KEYS) // 2]
    share = min(contested.count(owner) for owner in KEYS) * len(KEYS) / len(contested)
    return {"jobs_lost": expected - sum(results), "seconds": time.perf_counter() - begun_at, "fair_share_min": share}


def open_call(url: str, fields: dict[str, Any]) -> socket.socket:
    """Begin a synchronous call and return its connection."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    body = json.dumps(fields).encode()
    head = f"POST /v1/images/generations HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection
