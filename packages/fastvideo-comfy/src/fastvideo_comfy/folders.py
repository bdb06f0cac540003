"""ComfyUI's model folders: which file a name stands for. Reads `extra_model_paths.yaml`; free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fastvideo_comfy.files import FOLDERS, name_problem
from fastvideo_core.errors import CheckpointError, InputError

__all__ = ["ModelFolders", "read_extra_paths"]

_ALIASES: Mapping[str, tuple[str, ...]] = {
    "diffusion_models": ("diffusion_models", "unet"),
    "text_encoders": ("text_encoders", "clip"),
}
"""Older names of ComfyUI's folders, which are searched as well."""

_KINDS = (*dict.fromkeys(FOLDERS.values()), "loras")


@dataclass(frozen=True, slots=True)
class ModelFolders:
    """Folders by kind, in the order in which they are searched.

    Attributes:
        paths: Folders by ComfyUI's name of the kind: `diffusion_models`, `text_encoders`, `vae`, `loras`, ….
    """

    paths: Mapping[str, tuple[Path, ...]] = field(default_factory=dict)

    @classmethod
    def below(cls, root: Path) -> ModelFolders:
        """Return the folders of a ComfyUI `models` folder, or of the folder that it is in."""
        base = root / "models" if (root / "models").is_dir() else root
        if not base.is_dir():
            raise InputError("not a folder", field="models", value=str(root), allowed="ComfyUI's models folder")
        return cls({kind: tuple(base / name for name in _ALIASES.get(kind, (kind,))) for kind in _KINDS})

    def joined(self, other: ModelFolders) -> ModelFolders:
        """Return these folders and others after them."""
        return ModelFolders({kind: (*self.paths.get(kind, ()), *other.paths.get(kind, ())) for kind in _KINDS})

    def find(self, kind: str, name: str) -> Path:
        """Return the file of a name.

        Raises:
            InputError: The name leaves its folder.
            CheckpointError: No folder has it; names the nearest.
        """
        if (problem := name_problem(name)) is not None:
            raise InputError(problem, field=kind, value=name, allowed="a name below the folder")
        places = self.paths.get(kind, ())
        for place in places:
            if (path := place / name.replace("\\", "/")).is_file():
                return path
        there = sorted({path.name for place in places if place.is_dir() for path in place.rglob("*.safetensors")})
        near = get_close_matches(name, there, n=1, cutoff=0.4)
        hint = f"; nearest: {near[0]}" if near else ""
        searched = ", ".join(map(str, places)) or "no folder is given"
        raise CheckpointError(f"no file {name!r} in ComfyUI's {kind}: {searched}{hint}")


def read_extra_paths(path: Path) -> ModelFolders:
    """Read a file in the form of ComfyUI's `extra_model_paths.yaml`.

    Raises:
        InputError: It cannot be read, or is of another form.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", field="models", value=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not YAML: {str(error).splitlines()[0]}", field="models", value=str(path)) from None
    if not isinstance(content, Mapping):
        raise InputError("not a mapping", field="models", value=str(path), allowed="sections with folders by kind")
    folders = ModelFolders()
    for section in content.values():
        if isinstance(section, Mapping):
            folders = folders.joined(_section(section, path.parent))
    return folders


def _section(section: Mapping[Any, Any], beside: Path) -> ModelFolders:
    base = beside / Path(str(section.get("base_path") or ".")).expanduser()
    kinds = {alias: kind for kind in _KINDS for alias in _ALIASES.get(kind, (kind,))}
    paths: dict[str, tuple[Path, ...]] = {}
    for key, value in section.items():
        kind = kinds.get(str(key))
        if kind is not None and isinstance(value, str):
            lines = [line.strip() for line in value.splitlines() if line.strip()]
            paths[kind] = (*paths.get(kind, ()), *(base / line for line in lines))
    return ModelFolders(paths)
