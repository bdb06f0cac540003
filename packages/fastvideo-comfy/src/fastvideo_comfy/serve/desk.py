"""The desk where prompts come in: queue, course and history, told as ComfyUI tells them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastvideo_comfy.program import OutputRequest
from fastvideo_comfy.serve.compiling import ServedCompiler
from fastvideo_comfy.serve.files import FileRoom
from fastvideo_comfy.serve.hub import Hub, preview_message
from fastvideo_comfy.serve.prompts import Output, PromptRun, ui_of
from fastvideo_core.errors import CancelledError, FastVideoError, describe_failure
from fastvideo_core.request.media.output import OutputTarget
from fastvideo_core.runtime.run import GenerationResult
from fastvideo_core.runtime.serving import ServerHost, Wanted

__all__ = ["Desk"]

_LOG = logging.getLogger(__name__)


class Desk:
    """Prompts of all owners; used on the event loop alone.

    Args:
        host: The server.
        compiler: Compiles for it.
        hub: Who is told.
        max_history: Most prompts that have ended and are remembered.
    """

    def __init__(self, host: ServerHost, compiler: ServedCompiler, hub: Hub, *, max_history: int) -> None:
        self.compiler = compiler
        self.hub = hub
        self._host = host
        self._max_history = max_history
        self._open: dict[str, PromptRun] = {}
        self._history: dict[str, tuple[str, dict[str, Any]]] = {}
        self._rooms: dict[str, FileRoom] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0

    def room(self, owner: str) -> FileRoom:
        """Return an owner's files."""
        if owner not in self._rooms:
            self._rooms[owner] = FileRoom(self._host.folder / owner)
        return self._rooms[owner]

    def next_number(self, *, is_first: bool) -> int:
        """Return the number of the next prompt; below 0 for one that goes before the others."""
        self._number += 1
        return -self._number if is_first else self._number

    def knows(self, prompt_id: str) -> bool:
        """Whether an id is in use."""
        return prompt_id in self._open or prompt_id in self._history

    async def accept(self, run: PromptRun, requests: Iterable[tuple[int, OutputRequest]]) -> None:
        """Hand a prompt's outputs over to the server.

        Args:
            run: The prompt.
            requests: What is wanted of its program, each with its place there.

        Raises:
            FastVideoError: It is not accepted.
        """
        images = self.room(run.owner).folder("input")
        options = {"has_previews": self.hub.has(run.owner, run.client_id), "is_first": run.number < 0}
        pairs = list(requests)

        def prepare() -> list[Wanted]:
            return [self.compiler.wanted(run.program, output, images, **options) for _, output in pairs]

        jobs = await self._host.begin(await asyncio.to_thread(prepare), run.owner)
        run.outputs = [Output(output, job, f"o{place}") for (place, output), job in zip(pairs, jobs, strict=True)]
        self._open[run.prompt_id] = run
        self._tell_status(run.owner)
        task = asyncio.ensure_future(self._carry(run))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def remaining(self, owner: str) -> int:
        """Return how many prompts of an owner have not ended."""
        return sum(run.owner == owner for run in self._open.values())

    def queue(self, owner: str) -> dict[str, list[Any]]:
        """Return an owner's prompts that run, and those that wait."""
        own = [run for run in self._open.values() if run.owner == owner]
        return {
            "queue_running": [run.queued() for run in own if run.state == "running"],
            "queue_pending": [run.queued() for run in own if run.state == "pending"],
        }

    def interrupt(self, owner: str, prompt_id: str | None = None) -> None:
        """Cancel what runs, or one prompt if it runs."""
        for run in list(self._open.values()):
            if run.owner == owner and run.state == "running" and prompt_id in (None, run.prompt_id):
                self._cancel(run, "interrupted")

    def drop(self, owner: str, prompt_ids: Iterable[str] | None = None) -> None:
        """Take prompts out that wait; None takes all."""
        wanted = None if prompt_ids is None else set(prompt_ids)
        for run in list(self._open.values()):
            if run.owner == owner and run.state == "pending" and (wanted is None or run.prompt_id in wanted):
                self._cancel(run, "taken out of the queue")

    def history(self, owner: str, *, max_items: int | None = None, offset: int = -1) -> dict[str, Any]:
        """Return an owner's prompts that have ended, oldest first; of many the newest, or those from an offset on."""
        own = [(prompt_id, told) for prompt_id, (whose, told) in self._history.items() if whose == owner]
        if max_items is not None:
            begin = max(0, len(own) - max_items) if offset < 0 else offset
            own = own[begin : begin + max_items]
        return dict(own)

    def remembered(self, owner: str, prompt_id: str) -> dict[str, Any]:
        """Return one prompt that has ended, by its id; empty if there is none."""
        whose, told = self._history.get(prompt_id, ("", {}))
        return {prompt_id: told} if told and whose == owner else {}

    def forget(self, owner: str, prompt_ids: Iterable[str] | None = None) -> None:
        """Forget prompts that have ended; None forgets all."""
        wanted = None if prompt_ids is None else set(prompt_ids)
        for prompt_id, (whose, _) in list(self._history.items()):
            if whose == owner and (wanted is None or prompt_id in wanted):
                del self._history[prompt_id]

    def status(self, owner: str) -> dict[str, Any]:
        """Return what `status` messages say."""
        return {"status": {"exec_info": {"queue_remaining": self.remaining(owner)}}}

    def _cancel(self, run: PromptRun, reason: str) -> None:
        run.is_cancelled = True
        self._host.cancel(run.jobs, reason)

    async def _carry(self, run: PromptRun) -> None:
        """Follow a prompt to its end, and tell of it."""
        failed = await self._follow_all(run)
        has_begun, run.state = run.state == "running", "ended"
        if failed is None:
            self._note(run, "execution_success", run.stamp())
        elif has_begun or not run.is_cancelled:
            self._note_failure(run, *failed)
        self._open.pop(run.prompt_id, None)
        if has_begun or not run.is_cancelled:
            self._remember(run)
        for output in run.outputs:
            output.job = None  # frees the frames
        self._tell_status(run.owner)
        self.hub.tell(run.owner, run.client_id, "executing", {"node": None, "prompt_id": run.prompt_id})

    async def _follow_all(self, run: PromptRun) -> tuple[Output, Exception] | None:
        """Follow all outputs; the first that fails ends the others, and is returned with its error."""
        failed: tuple[Output, Exception] | None = None
        following = {asyncio.ensure_future(self._follow(run, one)): one for one in run.outputs}
        waiting = set(following)
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                error = task.exception()
                if isinstance(error, Exception) and failed is None:
                    failed = (following[task], error)
                    self._host.cancel(run.jobs, "another output failed")
        return failed

    def _remember(self, run: PromptRun) -> None:
        self._history[run.prompt_id] = (run.owner, run.remembered())
        for old in list(self._history)[: -self._max_history]:
            del self._history[old]

    def _note_failure(self, run: PromptRun, output: Output, error: Exception) -> None:
        run.status = "error"
        node = output.node or output.request.output
        place = {"node_id": node, "node_type": run.type_of(node), "executed": list(run.made)}
        if run.is_cancelled or isinstance(error, CancelledError):
            self._note(run, "execution_interrupted", run.stamp(**place))
            return
        is_own = isinstance(error, FastVideoError)
        if not is_own:
            _LOG.error("prompt %s failed", run.prompt_id, exc_info=error)
        why = {
            "exception_message": describe_failure(error) if is_own else "the server has a fault; its log tells of it",
            "exception_type": type(error).__name__,
            "traceback": [],
            "current_inputs": {},
            "current_outputs": list(run.made),
        }
        self._note(run, "execution_error", run.stamp(**place, **why))

    async def _follow(self, run: PromptRun, output: Output) -> None:
        """Tell of one output while it is made, and keep what came of it."""
        job, after = output.job, -1
        assert job is not None, "it has one until its prompt has ended"
        while True:
            change, is_over = job.next_change(), job.ended.is_set()
            for event in job.events(after):
                after = event.sequence
                await self._tell(run, output, event)
            if is_over:
                break
            await change.wait()
        if job.error is not None:
            raise job.error
        if job.result is None:
            raise CancelledError("the server stops")
        self._begin(run)
        await self._keep(run, output, job.result)

    async def _tell(self, run: PromptRun, output: Output, event: Any) -> None:
        if event.type == "request.started":
            self._begin(run)
        elif event.type == "request.progress":
            node = run.origin(output, event.node)
            if node is not None:
                self._enter(run, output, node)
                if event.num_steps:
                    step = {"value": min(event.step, event.num_steps), "max": event.num_steps}
                    data = {**step, "prompt_id": run.prompt_id, "node": node}
                    self.hub.tell(run.owner, run.client_id, "progress", data)
        elif event.type == "media.chunk" and event.is_preview and event.data is not None:
            self.hub.tell_bytes(run.owner, run.client_id, await asyncio.to_thread(preview_message, event.data))

    def _begin(self, run: PromptRun) -> None:
        if run.state == "pending":
            run.state = "running"
            self._note(run, "execution_start", run.stamp())
            self._note(run, "execution_cached", run.stamp(nodes=[]))

    def _enter(self, run: PromptRun, output: Output, node: str) -> None:
        """Tell that a node of the workflow runs now."""
        if output.node != node:
            output.node = node
            data = {"node": node, "display_node": run.shown(node), "prompt_id": run.prompt_id}
            self.hub.tell(run.owner, run.client_id, "executing", data)

    async def _keep(self, run: PromptRun, output: Output, result: GenerationResult) -> None:
        """Write the file of an output, and tell of it."""
        request, root = output.request, self.room(run.owner).folder("output")
        self._enter(run, output, request.output)
        target = OutputTarget(root / f"{request.file.prefix}.{request.file.format}", on_conflict="next")
        saved = await asyncio.to_thread(result.video.save, target)
        shown = ui_of([_names(path, root) for path in saved.paths], is_video=request.file.format != "png")
        run.made[request.output] = shown
        data = {"node": request.output, "display_node": run.shown(request.output), "output": shown}
        self.hub.tell(run.owner, run.client_id, "executed", {**data, "prompt_id": run.prompt_id})

    def _note(self, run: PromptRun, kind: str, data: Mapping[str, Any]) -> None:
        run.messages.append((kind, dict(data)))
        self.hub.tell(run.owner, run.client_id, kind, dict(data))

    def _tell_status(self, owner: str) -> None:
        self.hub.tell_all(owner, "status", self.status(owner))


def _names(path: Path, root: Path) -> tuple[str, str]:
    folder = path.parent.relative_to(root).as_posix()
    return path.name, "" if folder == "." else folder
