"""File names made from prompts and ids: readable, safe on every file system, and never a path."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from fastvideo_core.errors import ParameterError

__all__ = ["MAX_STEM_BYTES", "check_stem", "default_stem", "numbered", "slugify"]

MAX_STEM_BYTES = 120
"""Leaves room below the 255 bytes of ordinary file systems for a number, a suffix and a frame count."""

_FALLBACK = "video"
# Names that Windows keeps for devices, with any extension.
_RESERVED = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in "123456789¹²³"}
)


def slugify(text: str, *, max_bytes: int = MAX_STEM_BYTES) -> str:
    """Return text as a file name without extension.

    Letters, marks and digits of every script stay, in Unicode's composed form (NFC); every run of other characters,
    separators, dots and control characters among them, becomes one hyphen. What is too long is cut between
    characters. Names that Windows reserves get a hyphen at the end. Empty results become `video`.

    Args:
        text: A prompt.
        max_bytes: Limit of the result in UTF-8, at least 8.
    """
    kept = "".join(character if _is_word(character) else "-" for character in unicodedata.normalize("NFC", text))
    slug = _cut(re.sub(r"-+", "-", kept).strip("-"), max_bytes).strip("-") or _FALLBACK
    return f"{slug}-" if slug.lower() in _RESERVED else slug


def default_stem(prompt: str, seed: int) -> str:
    """Return `<prompt>-<seed>` as a safe file name without extension."""
    suffix = f"-{seed}"
    return slugify(prompt, max_bytes=MAX_STEM_BYTES - len(suffix)) + suffix


def check_stem(name: str, *, field: str = "id") -> str:
    """Return a name that a caller gave as part of a file name, or refuse it.

    Raises:
        ParameterError: It is empty, too long, a path, hidden, or reserved.
    """
    is_plain = all(_is_word(character) or character in "-_.+=@ ()," for character in name)
    is_trimmed = name == name.strip(" .") and not name.startswith("-")
    is_reserved = name.partition(".")[0].lower() in _RESERVED
    if name and is_plain and is_trimmed and not is_reserved and len(name.encode()) <= MAX_STEM_BYTES:
        return name
    raise ParameterError(
        "not usable as a file name",
        field=field,
        value=name if len(name) <= MAX_STEM_BYTES else name[:MAX_STEM_BYTES] + "…",
        allowed=f"letters, digits and -_.+=@(), within {MAX_STEM_BYTES} bytes, no path, no dot or space at the ends",
        nearest=slugify(name),
    )


def numbered(path: Path) -> Iterator[Path]:
    """Yield the path, then `name-2.mp4`, `name-3.mp4` and so on, without end."""
    yield path
    number = 2
    while True:
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1


def _is_word(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def _cut(text: str, max_bytes: int) -> str:
    while len(text.encode()) > max_bytes:
        text = text[:-1]
        # A letter and its marks go together.
        while text and unicodedata.category(text[-1])[0] == "M" and len(text.encode()) > max_bytes:
            text = text[:-1]
    return text
