"""Which card a file of ComfyUI's model folders belongs to, by its name; free of torch.

ComfyUI names weights by file. The table knows the names under which the supported models are published for it, in every
number format; files with other names are said by the person, one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import PureWindowsPath

from fastvideo_core.errors import ParameterError

__all__ = ["FOLDERS", "KNOWN_FILES", "CardFile", "FileMap", "name_problem", "parse_assignments"]

FOLDERS: Mapping[str, str] = {
    "transformer": "diffusion_models",
    "transformer_2": "diffusion_models",
    "text_encoder": "text_encoders",
    "vae": "vae",
    "image_encoder": "clip_vision",
}
"""ComfyUI's folder of each component's files."""

_FORMAT = r"(?:[._-](?:fp32|fp16|bf16|fp8(?:[._]e[45]m[23]fn)?(?:[._-]?scaled)?))?\.safetensors"


@dataclass(frozen=True, slots=True)
class CardFile:
    """A component of a card, which a file holds.

    Attributes:
        card: Card by id or location; "" for files that all cards of a family share.
        component: The card's component.
    """

    card: str
    component: str


KNOWN_FILES: tuple[tuple[str, CardFile], ...] = (
    ("wan2.1_t2v_1.3B", CardFile("wan2.1-t2v-1.3b", "transformer")),
    ("wan2.1_t2v_14B", CardFile("wan2.1-t2v-14b", "transformer")),
    ("wan2.1_i2v_480p_14B", CardFile("wan2.1-i2v-14b-480p", "transformer")),
    ("wan2.1_i2v_720p_14B", CardFile("wan2.1-i2v-14b-720p", "transformer")),
    ("wan2.2_ti2v_5B", CardFile("wan2.2-ti2v-5b", "transformer")),
    ("wan2.2_t2v_high_noise_14B", CardFile("wan2.2-t2v-a14b", "transformer")),
    ("wan2.2_t2v_low_noise_14B", CardFile("wan2.2-t2v-a14b", "transformer_2")),
    ("wan2.2_i2v_high_noise_14B", CardFile("wan2.2-i2v-a14b", "transformer")),
    ("wan2.2_i2v_low_noise_14B", CardFile("wan2.2-i2v-a14b", "transformer_2")),
    ("umt5_xxl", CardFile("", "text_encoder")),
    ("clip_vision_h", CardFile("", "image_encoder")),
    ("wan_2.1_vae", CardFile("wan2.1-t2v-1.3b", "vae")),
    ("wan_2.1_vae", CardFile("wan2.1-t2v-14b", "vae")),
    ("wan_2.1_vae", CardFile("wan2.1-i2v-14b-480p", "vae")),
    ("wan_2.1_vae", CardFile("wan2.1-i2v-14b-720p", "vae")),
    ("wan_2.1_vae", CardFile("wan2.2-t2v-a14b", "vae")),
    ("wan_2.1_vae", CardFile("wan2.2-i2v-a14b", "vae")),
    ("wan2.2_vae", CardFile("wan2.2-ti2v-5b", "vae")),
)
"""Published files, by the part of their names before the number format."""

_PATTERNS = tuple((re.compile(re.escape(stem) + _FORMAT, re.IGNORECASE), owner) for stem, owner in KNOWN_FILES)


@dataclass(frozen=True, slots=True)
class FileMap:
    """Owners of files: what a person says goes before the table.

    Attributes:
        said: Owners by file name.
    """

    said: Mapping[str, tuple[CardFile, ...]] = field(default_factory=dict)

    def owners(self, file: str) -> tuple[CardFile, ...]:
        """Return the components that a file may be; none for unknown names."""
        name = file.replace("\\", "/").rpartition("/")[2]
        for key in (file, name):
            if key in self.said:
                return self.said[key]
        return tuple(owner for pattern, owner in _PATTERNS if pattern.fullmatch(name))

    def nearest(self, file: str, component: str) -> str:
        """Return the nearest known name of a component's file; "" if nothing is near."""
        kinds = {"transformer", "transformer_2"} if component.startswith("transformer") else {component}
        stems = {stem: owner for stem, owner in KNOWN_FILES if owner.component in kinds}
        near = get_close_matches(file.rpartition("/")[2], [*stems, *self.said], n=1, cutoff=0.3)
        return next(iter(near), "")


def parse_assignments(texts: list[str]) -> FileMap:
    """Read `FILE=CARD` and `FILE=CARD:COMPONENT`; without a component, a file is the card's transformer.

    Raises:
        ParameterError: A text of another form.
    """
    said: dict[str, tuple[CardFile, ...]] = {}
    for text in texts:
        file, separator, owner = text.rpartition("=")
        card, _, component = owner.rpartition(":")
        if component not in FOLDERS:
            card, component = owner, "transformer"
        if not separator or not file or not card:
            raise ParameterError(
                "not an assignment of a file",
                field="model",
                value=text,
                allowed=f"FILE=CARD or FILE=CARD:COMPONENT, components {', '.join(FOLDERS)}",
            )
        said[file] = (*said.get(file, ()), CardFile(card, component))
    return FileMap(said)


def name_problem(file: str) -> str | None:
    """Return why a file name that a workflow gives is not followed; None if it is one below ComfyUI's folders."""
    path = PureWindowsPath(file)
    if not file.strip() or "\0" in file:
        return "no file name"
    if path.is_absolute() or path.drive or file.startswith(("/", "\\", "~")):
        return "an absolute path; names are relative to ComfyUI's folders"
    if ".." in path.parts:
        return "a path that leaves its folder"
    return None
