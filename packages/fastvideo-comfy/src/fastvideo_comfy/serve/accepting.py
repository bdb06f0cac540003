"""`POST /prompt`: from a body to a prompt that runs, or to every reason against it in ComfyUI's shape."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastvideo_comfy.compiler import Compiled
from fastvideo_comfy.errors import WorkflowError
from fastvideo_comfy.graph.document import Document, parse_document
from fastvideo_comfy.program import OutputRequest
from fastvideo_comfy.serve.desk import Desk
from fastvideo_comfy.serve.prompts import PromptRun
from fastvideo_core.errors import FastVideoError, InputError, describe_failure

__all__ = ["Asked", "RefusedPromptError", "accept_prompt", "read_object", "read_prompt", "refusal_of"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SECRETS = ("auth_token_comfy_org", "api_key_comfy_org")
"""Keys of other services, which clients send along and nothing here needs."""


class RefusedPromptError(InputError):
    """A prompt is refused.

    Args:
        body: The answer's JSON.
        status: Its HTTP status.
        headers: Its headers.
    """

    def __init__(self, body: Mapping[str, Any], status: int = 400, headers: Mapping[str, str] | None = None) -> None:
        self.body = dict(body)
        self.status = status
        self.headers = dict(headers or {})
        super().__init__(str(body["error"]["message"]))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a body asks for.

    Attributes:
        document: The prompt.
        prompt_id: Its id: the client's, or a new one.
        client_id: The client that is told of it; None if there is none.
        extra_data: What else came, without keys of other services.
        is_first: Whether it goes before what waits.
        targets: Output nodes that are wanted; None wants all.
    """

    document: Document
    prompt_id: str
    client_id: str | None
    extra_data: Mapping[str, Any]
    is_first: bool
    targets: tuple[str, ...] | None


async def accept_prompt(desk: Desk, data: bytes, owner: str) -> dict[str, Any]:
    """Take a prompt in, and return ComfyUI's answer.

    Raises:
        RefusedPromptError: It is not accepted; carries the answer.
    """
    asked = await asyncio.to_thread(read_prompt, data)
    if desk.knows(asked.prompt_id):
        raise _refuse("invalid_prompt_id", "a prompt of this id is there already", asked.prompt_id)
    images = desk.room(owner).folder("input")

    def examine() -> Compiled:
        return desk.compiler.with_files(desk.compiler.examine(asked.document), images)

    compiled = await asyncio.to_thread(examine)
    if compiled.program is None:
        raise RefusedPromptError(compiled.report.errors())
    run = PromptRun(
        asked.prompt_id,
        desk.next_number(is_first=asked.is_first),
        owner,
        asked.client_id,
        asked.document.content if asked.document.form == "api" else compiled.graph.to_prompt(),
        asked.extra_data,
        compiled.program,
        compiled.graph,
    )
    try:
        await desk.accept(run, _chosen(compiled, asked.targets))
    except FastVideoError as error:
        raise refusal_of(error) from error
    return {"prompt_id": run.prompt_id, "number": run.number, "node_errors": {}}


def read_object(data: bytes) -> dict[str, Any]:
    """Return the object that a body is; an empty body is an empty one.

    Raises:
        RefusedPromptError: It is no JSON object.
    """
    try:
        content = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        raise _refuse("invalid_json", "the body is no JSON", "") from None
    if not isinstance(content, dict):
        raise _refuse("invalid_json", "the body is no JSON object", "")
    return content


def refusal_of(error: FastVideoError) -> RefusedPromptError:
    """Return an error of the server, or of the card, as ComfyUI would answer."""
    if isinstance(error, RefusedPromptError):
        return error
    status = getattr(error, "status", 400 if isinstance(error, InputError) else 503)
    kind = getattr(error, "code", "") or "prompt_outputs_failed_validation"
    details = getattr(error, "allowed", None)
    body = _body(kind, describe_failure(error), f"allowed: {details}" if details else "")
    return RefusedPromptError(body, status, getattr(error, "headers", None))


def read_prompt(data: bytes) -> Asked:
    """Read a body.

    Raises:
        RefusedPromptError: It is no JSON, or has no prompt that is a workflow.
    """
    body = read_object(data)
    if "prompt" not in body:
        raise _refuse("no_prompt", "No prompt provided", "No prompt provided")
    prompt = body["prompt"]
    is_api_form = isinstance(prompt, Mapping) and not isinstance(prompt.get("nodes"), list)
    try:
        # The text, where it can be: an id that stands twice is seen in it alone.
        document = parse_document(data if is_api_form else prompt if isinstance(prompt, Mapping) else {}, name="prompt")
    except WorkflowError as error:
        raise _refuse("invalid_prompt", error.reason, error.allowed or "") from None
    extra = body.get("extra_data")
    known = {key: value for key, value in extra.items() if key not in _SECRETS} if isinstance(extra, dict) else {}
    client_id = body.get("client_id", known.get("client_id"))
    return Asked(
        document, _prompt_id(body.get("prompt_id")), client_id if isinstance(client_id, str) else None, known,
        body.get("front") is True, _targets(body.get("partial_execution_targets")),
    )  # fmt: skip


def _prompt_id(given: Any) -> str:
    if given is None:
        return str(uuid.uuid4())
    if not isinstance(given, str) or not _ID.fullmatch(given):
        raise _refuse("invalid_prompt_id", "not an id", "letters, digits, - and _")
    return given


def _targets(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list):
        raise _refuse("invalid_targets", "partial_execution_targets is no list", "ids of output nodes")
    return tuple(map(str, given))


def _chosen(compiled: Compiled, targets: tuple[str, ...] | None) -> list[tuple[int, OutputRequest]]:
    """Return the outputs that are wanted, each with its place in the program."""
    assert compiled.program is not None
    found = [
        (place, one)
        for place, one in enumerate(compiled.program.requests, start=1)
        if targets is None or one.output in targets
    ]
    if not found:
        known = ", ".join(one.output for one in compiled.program.requests)
        raise _refuse("prompt_no_outputs", "Prompt has no outputs", f"allowed: {known}")
    return found


def _refuse(kind: str, message: str, details: str) -> RefusedPromptError:
    return RefusedPromptError(_body(kind, message, details))


def _body(kind: str, message: str, details: str) -> dict[str, Any]:
    error = {"type": kind, "message": message, "details": details, "extra_info": {}}
    return {"error": error, "node_errors": {}}
