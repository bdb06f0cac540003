"""A hub on the loopback interface that speaks enough of the Hub's file API for the real client to download from it.

    with HubServer() as hub:
        hub.add_folder("org/name", folder)
        ... HubAccess(endpoint=hub.endpoint, cache_dir=...)

It can be gated, refuse with any status, and break connections part-way.

Source: the API as `huggingface_hub` calls it: repository info, tree, and `resolve` with HEAD and ranges.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

_LFS_ENDINGS = (".safetensors", ".bin", ".model")


@dataclass(slots=True)
class HubRepository:
    """One repository.

    Attributes:
        commit: The commit that all its revisions point to.
        revisions: Branches and tags.
        files: Content by path.
        is_gated: Refuse files to requests whose token is not in `allowed_tokens`.
        allowed_tokens: Tokens that may read a gated repository.
        break_after: Bytes after which the next GET of a path is cut off; used up one by one.
        corrupted: Content that is sent in place of the right one.
        ignores_ranges: Always send whole files.
        store: A second server that large files are redirected to, as the Hub does.
    """

    commit: str
    revisions: tuple[str, ...] = ("main",)
    files: dict[str, bytes] = field(default_factory=dict)
    is_gated: bool = False
    allowed_tokens: tuple[str, ...] = ()
    break_after: dict[str, list[int]] = field(default_factory=dict)
    corrupted: dict[str, bytes] = field(default_factory=dict)
    ignores_ranges: bool = False
    store: HubServer | None = None

    def has_revision(self, revision: str) -> bool:
        """Return whether a revision is there."""
        return revision == self.commit or revision in self.revisions


@dataclass(frozen=True, slots=True)
class HubRequest:
    """One request that has been answered, with its `Range` and `Authorization` headers."""

    method: str
    path: str
    asked_range: str | None
    authorization: str | None


class HubServer:
    """The server; use it as a context manager.

    Attributes:
        repositories: By `org/name`.
        requests: What has been asked so far.
        refuse_status: Answer everything with this status.
        stored: What a redirect to this server finds, by SHA-256.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, HubRepository] = {}
        self.requests: list[HubRequest] = []
        self.refuse_status: int | None = None
        self.stored: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def endpoint(self) -> str:
        """The hub's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def add_folder(self, repo_id: str, folder: Path, *, commit: str | None = None) -> HubRepository:
        """Offer the files of a folder as a repository."""
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        commit = commit or hashlib.sha1(repo_id.encode(), usedforsecurity=False).hexdigest()
        self.repositories[repo_id] = HubRepository(commit, files=files)
        return self.repositories[repo_id]

    def downloads(self) -> list[str]:
        """Return the paths of all GET requests for files."""
        return [request.path for request in self.requests if request.method == "GET" and "/resolve/" in request.path]

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler_for(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            _answer(hub, self)

        def do_GET(self) -> None:
            _answer(hub, self)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Keep quiet."""

    return Handler


def _answer(hub: HubServer, handler: BaseHTTPRequestHandler) -> None:
    path = unquote(urlsplit(handler.path).path).strip("/")
    hub.requests.append(
        HubRequest(handler.command, path, handler.headers.get("Range"), handler.headers.get("Authorization"))
    )
    if hub.refuse_status is not None:
        return _refuse(handler, hub.refuse_status, None)
    if path.startswith("stored/"):
        return _send_bytes(handler, hub.stored[path.removeprefix("stored/")], {})
    is_api = path.startswith("api/models/")
    parts = path.removeprefix("api/models/").split("/")
    repo_id, rest = "/".join(parts[:2]), parts[2:]
    repository = hub.repositories.get(repo_id)
    if repository is None:
        return _refuse(handler, 404, "RepoNotFound")
    revision = rest[1] if len(rest) > 1 else "main"
    if not repository.has_revision(revision):
        return _refuse(handler, 404, "RevisionNotFound")
    if is_api:
        return _answer_api(handler, repo_id, repository, rest)
    token = (handler.headers.get("Authorization") or "").removeprefix("Bearer ")
    if repository.is_gated and token not in repository.allowed_tokens:
        return _refuse(handler, 403 if token else 401, "GatedRepo")
    return _send_file(handler, repository, "/".join(rest[2:]))


def _answer_api(handler: BaseHTTPRequestHandler, repo_id: str, repository: HubRepository, rest: list[str]) -> None:
    if rest[:1] == ["tree"]:
        entries = [{"type": "file", "path": path, **_sizes(path, data)} for path, data in repository.files.items()]
        return _send_json(handler, entries)
    siblings = []
    for path, data in repository.files.items():
        sizes = _sizes(path, data)
        lfs = sizes.get("lfs")
        sibling = {"rfilename": path, "size": sizes["size"], "blobId": sizes["oid"]}
        siblings.append(sibling if lfs is None else {**sibling, "lfs": {**lfs, "sha256": lfs["oid"]}})
    return _send_json(handler, {"id": repo_id, "sha": repository.commit, "siblings": siblings})


def _sizes(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"size": len(data), "oid": _git_id(data)}
    if path.endswith(_LFS_ENDINGS):
        entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return entry


def _git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _send_json(handler: BaseHTTPRequestHandler, content: Any) -> None:
    body = json.dumps(content).encode()
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


def _refuse(handler: BaseHTTPRequestHandler, status: int, code: str | None) -> None:
    handler.send_response(status)
    if code is not None:
        handler.send_header("X-Error-Code", code)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _send_file(handler: BaseHTTPRequestHandler, repository: HubRepository, path: str) -> None:
    if path not in repository.files:
        return _refuse(handler, 404, "EntryNotFound")
    data = repository.files[path]
    sizes = _sizes(path, data)
    name = sizes.get("lfs", sizes)["oid"]
    if repository.store is not None and "lfs" in sizes:
        repository.store.stored[name] = data
        return _redirect(handler, repository, name, len(data))
    headers = {"X-Repo-Commit": repository.commit, "ETag": f'"{name}"'}
    cuts = repository.break_after.get(path)
    if handler.command == "HEAD" or not cuts:
        cuts = None
    data = repository.corrupted.get(path, data)
    return _send_bytes(handler, data, headers, cuts=cuts, ignores_ranges=repository.ignores_ranges)


def _redirect(handler: BaseHTTPRequestHandler, repository: HubRepository, name: str, num_bytes: int) -> None:
    assert repository.store is not None
    handler.send_response(302)
    # By another host name: clients tell the Hub from other hosts by that.
    store = repository.store.endpoint.replace("127.0.0.1", "localhost")
    handler.send_header("Location", f"{store}/stored/{name}")
    handler.send_header("X-Repo-Commit", repository.commit)
    handler.send_header("X-Linked-ETag", f'"{name}"')
    handler.send_header("X-Linked-Size", str(num_bytes))
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def _send_bytes(
    handler: BaseHTTPRequestHandler,
    data: bytes,
    headers: dict[str, str],
    *,
    cuts: list[int] | None = None,
    ignores_ranges: bool = False,
) -> None:
    first = 0 if ignores_ranges else _first_byte(handler)
    handler.send_response(206 if first else 200)
    if first:
        handler.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.send_header("Accept-Ranges", "bytes")
    handler.send_header("Content-Length", str(len(data) - first))
    handler.end_headers()
    if handler.command == "HEAD":
        return
    if cuts is None:
        handler.wfile.write(data[first:])
        return
    handler.wfile.write(data[first : first + cuts.pop(0)])
    handler.close_connection = True


def _first_byte(handler: BaseHTTPRequestHandler) -> int:
    asked = handler.headers.get("Range") or ""
    first = asked.removeprefix("bytes=").partition("-")[0]
    return int(first) if first.isdigit() else 0
