"""What those who run the server look at: health, figures, the queue."""

from __future__ import annotations

import asyncio

import psutil
from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from fastvideo_server.http.parts import CallerDep, PartsDep
from fastvideo_server.http.schemas import Health, Queue, refusals

__all__ = ["router"]

router = APIRouter(tags=["operations"])


@router.get("/health/live", summary="Whether the process answers", responses={200: {"model": Health}})
async def live() -> Response:
    """Answer."""
    return JSONResponse({"status": "ok", "problems": []})


@router.get(
    "/health/ready",
    summary="Whether jobs are worked on",
    responses={200: {"model": Health}, 503: {"model": Health, "description": "what is wrong"}},
)
async def ready(parts: PartsDep) -> Response:
    """Look at the engine and its workers, the queue, the disk and the table of jobs."""
    problems = await asyncio.to_thread(parts.health.problems)
    status = "failing" if problems else "ok"
    return JSONResponse({"status": status, "problems": problems}, status_code=503 if problems else 200)


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "the figures"},
               **refusals()},
    response_class=Response,
)  # fmt: skip
async def metrics(parts: PartsDep, caller: CallerDep) -> Response:  # noqa: ARG001 - asks for the key
    """Give all figures in Prometheus' text form."""
    return Response(parts.metrics.text(), media_type="text/plain; version=0.0.4")


@router.get("/v1/queue", summary="The queue and the device", responses={200: {"model": Queue}, **refusals()})
async def queue(parts: PartsDep, caller: CallerDep) -> Response:  # noqa: ARG001 - asks for the key
    """Tell how much waits and runs, and on what."""
    queued, running = parts.service.pump.sizes
    instance = parts.service.engine.instance
    caches = parts.service.engine.caches.features
    memory = {"weights": instance.num_bytes, "process": psutil.Process().memory_info().rss}
    memory |= {f"cache of {name}": cache.stats.used_bytes for name, cache in caches.items()}
    return JSONResponse(
        {
            "model": parts.service.card.model_id,
            "queued": queued,
            "running": running,
            "device": str(instance.device),
            "precision": instance.precision,
            "weights_bytes": instance.num_bytes,
            "sessions": parts.sessions.num_open,
            "memory_bytes": memory,
        }
    )
