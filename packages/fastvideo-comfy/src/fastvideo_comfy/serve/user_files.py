"""What ComfyUI's page keeps of a user: its settings, and files such as saved workflows."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path
from typing import Any

from fastvideo_comfy.serve.files import place_below
from fastvideo_core.errors import InputError, MediaError

__all__ = ["UserFiles"]

_LOCK = threading.Lock()  # a change of settings reads and writes them: one at a time
_STAGED = ".part"


class UserFiles:
    """The settings and files of one owner.

    Args:
        folder: The owner's folder; made when something is kept.
    """

    def __init__(self, folder: Path) -> None:
        self._root = folder / "user"
        self._settings = folder / "comfy.settings.json"

    @property
    def is_known(self) -> bool:
        """Whether anything has been kept."""
        return self._settings.is_file() or self._root.is_dir()

    def settings(self) -> dict[str, Any]:
        """Return the settings by their ids."""
        try:
            found: dict[str, Any] = json.loads(self._settings.read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def change(self, changes: dict[str, Any]) -> None:
        """Set some settings; the others stay.

        Raises:
            InputError: They cannot be sent back as JSON: NaN, half a surrogate pair.
        """
        with _LOCK:
            try:
                data = json.dumps({**self.settings(), **changes}, allow_nan=False, ensure_ascii=False).encode()
            except (ValueError, RecursionError):
                raise InputError("no JSON", field="settings", value="", allowed="finite numbers, whole text") from None
            _write(self._settings, data)

    def find(self, name: str) -> Path | None:
        """Return a file, or None if it is not there.

        Raises:
            InputError: The name leads out of the user's folder.
        """
        path = place_below(self._root, "", name)
        try:
            return path if path.is_file() else None
        except OSError:  # a name that is too long
            return None

    def names(self, folder: str, *, is_deep: bool) -> list[str] | None:
        """Return the names of the files of a folder, relative to it; None if it is not there."""
        root = place_below(self._root, "", folder)
        if not root.is_dir():
            return None
        found = (path for path in (root.rglob("*") if is_deep else root.iterdir()) if path.suffix != _STAGED)
        return sorted(path.relative_to(root).as_posix() for path in found if path.is_file())

    def keep(self, name: str, data: bytes, *, is_replacing: bool) -> str | None:
        """Keep a file; return its name, or None if it is there and not to be replaced.

        Raises:
            InputError: The name leads out of the user's folder, or is one of those used while writing.
            MediaError: It cannot be written.
        """
        path = place_below(self._root, "", name)
        if path.suffix == _STAGED:
            raise InputError("a name of unfinished files", field="filename", value=name, allowed="another ending")
        with _LOCK:
            if path.exists() and not is_replacing:
                return None
            try:
                _write(path, data)
            except OSError as error:
                raise MediaError(f"cannot be kept: {error.strerror}", field="filename", value=name[:100]) from None
        return path.relative_to(self._root.resolve()).as_posix()


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{uuid.uuid4().hex}{_STAGED}")
    try:
        staged.write_bytes(data)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
