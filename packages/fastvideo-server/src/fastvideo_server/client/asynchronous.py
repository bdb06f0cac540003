"""The client that is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from fastvideo_core.request.media.staging import replace_file
from fastvideo_server.client.base import EventReader, check, creation, headers_of, reached, refusal

__all__ = ["AsyncClient"]


class AsyncClient:
    """Speaks to a server. Close it, or use it as an asynchronous context manager.

    Args:
        url: Where the server is, for instance `http://127.0.0.1:8000`.
        key: API key; None where the server needs none.
        timeout_s: Seconds for an answer to begin.
    """

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 60.0) -> None:
        self._http = httpx2.AsyncClient(base_url=url, headers=headers_of(key), timeout=timeout_s)

    async def create(
        self, prompt: str, *, image: Path | str | None = None, idempotency_key: str | None = None, **parameters: Any
    ) -> dict[str, Any]:
        """Hand in a job, and return it as the server has accepted it.

        Args:
            prompt: What to show.
            image: File of an input image.
            idempotency_key: The same key makes no second job.
            **parameters: `size`, `seconds`, `task`, `latency_class`, `deadline_s`, `exact`, and those of the card.

        Raises:
            ServerError: It is not accepted.
        """
        video: dict[str, Any] = await self._json(
            "POST", "/v1/videos", **creation(prompt, image, parameters, idempotency_key)
        )
        return video

    async def get(self, video_id: str) -> dict[str, Any]:
        """Return a job as it is now."""
        video: dict[str, Any] = await self._json("GET", f"/v1/videos/{video_id}")
        return video

    async def list(self, *, limit: int = 20, order: str = "desc") -> AsyncIterator[dict[str, Any]]:
        """Yield jobs, fetched page by page."""
        query: dict[str, Any] = {"limit": limit, "order": order}
        while True:
            page = await self._json("GET", "/v1/videos", params=query)
            for video in page["data"]:
                yield video
            if not page["has_more"]:
                return
            query["after"] = page["last_id"]

    async def models(self) -> Any:
        """Return the cards that are served."""
        return (await self._json("GET", "/v1/models"))["data"]

    async def events(self, video_id: str) -> AsyncIterator[Any]:
        """Yield the typed events of a job to its end; a stream that breaks off is taken up again."""
        reader = EventReader()
        while not reader.is_done:
            cause: Exception | None = None
            try:
                async with self._http.stream(
                    "GET", f"/v1/videos/{video_id}/events", headers=reader.headers
                ) as response:
                    if response.status_code == httpx2.codes.NO_CONTENT:
                        return
                    if not response.is_success:
                        await response.aread()
                        raise refusal(response)
                    async for line in response.aiter_lines():
                        for event in reader.feed(line):
                            yield event
            except httpx2.TransportError as error:
                cause = error
            if not reader.is_done:
                reader.broke_off(cause)
                await asyncio.sleep(0.2 * reader.num_failures)

    async def wait(self, video_id: str) -> dict[str, Any]:
        """Wait until a job has ended, and return it."""
        async for _ in self.events(video_id):
            pass
        return await self.get(video_id)

    async def content(self, video_id: str, variant: str = "video") -> bytes:
        """Return the file of a job: `video`, `thumbnail` or `spritesheet`."""
        with reached():
            response = await self._http.get(f"/v1/videos/{video_id}/content", params={"variant": variant})
        if not response.is_success:
            raise refusal(response)
        return response.content

    async def save(self, video_id: str, path: Path | str, variant: str = "video") -> Path:
        """Write the file of a job, whole or not at all, in place of what is there; return its path."""
        data = await self.content(video_id, variant)
        await asyncio.to_thread(replace_file, Path(path), data)
        return Path(path)

    async def delete(self, video_id: str) -> None:
        """Cancel a job if it has not ended, and delete it."""
        await self._json("DELETE", f"/v1/videos/{video_id}")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _json(self, method: str, path: str, **options: Any) -> Any:
        with reached():
            response = await self._http.request(method, path, **options)
        return check(response)
