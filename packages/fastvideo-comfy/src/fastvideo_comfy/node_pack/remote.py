"""Models on a server, over its HTTP interface and its WebSocket of sessions."""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from PIL import Image

from fastvideo_comfy.node_pack.made import Made
from fastvideo_comfy.node_pack.models import BUFFER_S, Model, Stream, TaskForm, Work
from fastvideo_core.errors import CancelledError, ExecutionError, FastVideoError, InputError, ResourceError
from fastvideo_core.request.artifacts import VideoArtifact
from fastvideo_core.request.media.videos import load_video

__all__ = ["RemoteModel"]

_TIMEOUT_S = 60.0
_MAX_VIDEO = 2 << 30


class RemoteModel(Model):
    """The card that a server has.

    Args:
        url: Where the server is, for instance `http://127.0.0.1:8000`.
        key: Its API key; None where it needs none.

    Raises:
        InputError: It is no such URL.
        ResourceError: The server is not reached.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError("not a server's address", field="url", value=url, allowed="http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        (self._card, *_) = self.ask("GET", "/v1/models")["data"]
        self.name = str(self._card["id"])

    def tasks(self) -> Sequence[TaskForm]:
        """Return what the server lists, the card's default task first."""
        names = dict.fromkeys((self._card["default_task"], *self._card["tasks"]))
        return [self._form(name) for name in names]

    def stream_task(self, *, has_image: bool) -> TaskForm | None:
        """Return the task of the server's sessions."""
        name = self._card["stream_task"]
        if name is None:
            return None
        form = self._form(name)
        with_image = [one for one in self.tasks() if "image" in one.inputs]
        return form if not has_image or "image" in form.inputs or not with_image else with_image[0]

    def begin(self, prompt: str, task: str, image: Any, parameters: Mapping[str, Any]) -> Work:
        """Hand in a job."""
        fields = {"prompt": prompt, "task": task, **parameters, **_pictured(image)}
        return _RemoteWork(self, str(self.ask("POST", "/v1/videos", fields)["id"]))

    def begin_stream(
        self, prompt: str, task: str, image: Any, parameters: Mapping[str, Any], *, num_chunks: int, is_steered: bool
    ) -> Stream:
        """Begin a session."""
        from websockets.exceptions import WebSocketException
        from websockets.sync.client import connect

        fields = {"prompt": prompt, **parameters, **_pictured(image)}
        fields["options"] = {"num_chunks": num_chunks, "buffer_s": 0.0 if is_steered else BUFFER_S}
        if image is None:
            fields["task"] = task
        address = f"ws{self.url.removeprefix('http')}/v1/sessions"
        try:
            with ExitStack() as stack:
                connection = connect(address, additional_headers=self.headers, max_size=_MAX_VIDEO)
                return _RemoteStream(stack.enter_context(connection), fields, stack.pop_all().close)
        except (OSError, WebSocketException) as error:
            raise ResourceError(f"the server at {self.url} gives no session: {error}") from error

    def ask(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON of an answer; see `fetch`."""
        return json.loads(self.fetch(method, path, fields))

    def fetch(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> bytes:
        """Return the bytes of an answer.

        Raises:
            InputError: What was asked for is not allowed.
            ResourceError: The server is not reached, or does not do it now.
        """
        data = None if fields is None else json.dumps(fields).encode()
        headers = {**self.headers, **({} if data is None else {"Content-Type": "application/json"})}
        request = Request(f"{self.url}{path}", data=data, headers=headers, method=method)  # noqa: S310 - http or https
        try:
            with urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - see above
                return bytes(answer.read())
        except HTTPError as error:
            with error:
                raise _refusal(error.code, error.read(), self.url) from None
        except (URLError, OSError) as error:
            raise ResourceError(f"the server at {self.url} cannot be reached: {error}") from error

    def _form(self, name: str) -> TaskForm:
        task = self._card["tasks"][name]
        return TaskForm(name, frozenset(task["inputs"]), frozenset(task["parameters"]))


class _RemoteWork(Work):
    def __init__(self, model: RemoteModel, job_id: str) -> None:
        self._model = model
        self._path = f"/v1/videos/{job_id}"
        self._fraction = 0.0
        self._is_over = False

    @property
    def fraction(self) -> float:
        return self._fraction

    def wait(self, seconds: float) -> Made | None:
        time.sleep(seconds)
        job = self._model.ask("GET", self._path)
        self._fraction = job["progress"] / 100
        self._is_over = job["status"] in ("failed", "completed")
        if job["status"] == "failed":
            raise ExecutionError(f"the server's job failed: {job['error']['message']}")
        if job["status"] != "completed":
            return None
        file = self._model.fetch("GET", f"{self._path}/content")
        clip = load_video(file)
        return Made(VideoArtifact(clip.frames, clip.fps), file, job)

    def cancel(self) -> None:
        if not self._is_over:  # what has ended stays on the server
            self._model.fetch("DELETE", self._path)


class _RemoteStream(Stream):
    def __init__(self, socket: Any, fields: Mapping[str, Any], disconnect: Callable[[], None]) -> None:
        self._socket = socket
        self._disconnect = disconnect
        self._file = bytearray()
        self._facts: dict[str, Any] = {}
        self._is_over = False
        self._received: int | None = None
        self._send("session.create", **fields)

    def wait(self, seconds: float) -> int | None:
        if self._is_over:
            return -1
        with _connected():
            if self._received is not None:
                self._send("session.ack", received=self._received)
                self._received = None
            try:
                message = json.loads(self._socket.recv(timeout=seconds))
            except TimeoutError:
                return None
            if message.get("num_bytes"):
                self._file += self._socket.recv(timeout=_TIMEOUT_S)
            self._received = message.get("number")
        return self._take(message)

    def _take(self, message: Mapping[str, Any]) -> int | None:
        match message["type"]:
            case "error":
                raise _refusal(message["status"], json.dumps(message).encode(), "")
            case "session.created":
                self._facts = dict(message)
            case "session.failed":
                raise ExecutionError(f"the server's session failed: {message.get('message', '')}")
            case "session.ended":
                self._is_over = True
                return -1
            case "media.chunk":
                return int(message["index"])
        return None

    def push_text(self, text: str) -> None:
        with _connected():
            self._send("session.push_text", text=text)

    def close(self) -> None:
        from websockets.exceptions import WebSocketException

        try:
            if not self._is_over:
                self._send("session.close")
        except WebSocketException:
            return  # the connection is gone, and with it the session before long
        finally:
            self._disconnect()

    def made(self) -> Made:
        if not self._file:
            raise CancelledError("the stream ended before its first chunk")
        file = bytes(self._file)
        clip = load_video(file)
        return Made(VideoArtifact(clip.frames, clip.fps), file, self._facts)

    def _send(self, kind: str, **fields: Any) -> None:
        self._socket.send(json.dumps({"type": kind, **fields}))


@contextmanager
def _connected() -> Iterator[None]:
    from websockets.exceptions import WebSocketException

    try:
        yield
    except (WebSocketException, TimeoutError) as error:
        raise ResourceError(f"the server's session broke off: {error}") from error


def _refusal(status: int, body: bytes, url: str) -> FastVideoError:
    try:
        message = str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ResourceError(f"the server at {url} answered with {status}")
    is_own_fault = 400 <= status < 500 and status != 429
    return InputError(message) if is_own_fault else ResourceError(f"the server does not do it now: {message}")


def _pictured(image: Any) -> dict[str, Any]:
    if image is None:
        return {}
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, format="PNG")
    return {"input_reference": {"image_url": f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"}}
