"""Bodies of creations: JSON, or a form with an input image. What is malformed is told, nothing is guessed."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartParser
from starlette.requests import Request

from fastvideo_server.errors import ApiError

__all__ = ["Body", "image_from_url", "image_of", "parse_json", "read_body"]

_IMAGE = "input_reference"
_URL_FIELD = "input_reference[image_url]"
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+;base64,", re.ASCII)
_MAX_FIELDS = 200
_MAX_FIELD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Body:
    """What was said.

    Attributes:
        fields: Values by name, but for the image.
        image: Bytes of the input image's file; None without one.
        is_form: Whether all values are text.
    """

    fields: Mapping[str, Any]
    image: bytes | None = None
    is_form: bool = False

    @property
    def digest(self) -> str:
        """SHA-256 of all of it, whatever the order of the fields."""
        image = None if self.image is None else hashlib.sha256(self.image).hexdigest()
        text = json.dumps([self.fields, image, self.is_form], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


async def read_body(request: Request, *, max_bytes: int, has_image: bool = True) -> Body:
    """Read the body of a creation.

    Args:
        request: The request.
        max_bytes: Most bytes, which are kept in memory.
        has_image: Whether `input_reference` is an image; else it is a field like others.

    Raises:
        ApiError: It is malformed, or of another kind.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _read_form(request, max_bytes)
    if kind != "application/json":
        raise ApiError(
            415, f"bodies of type {kind[:80]!r} are not read", code="unsupported_media_type", param="Content-Type",
            allowed="application/json, multipart/form-data",
        )  # fmt: skip
    fields = parse_json(await request.body())
    image = image_of(fields.pop(_IMAGE, None)) if has_image else None
    return Body(fields, image)


def parse_json(data: bytes) -> dict[str, Any]:
    """Return the object that a text is, by JSON's own rules.

    Raises:
        ApiError: It is none, has a key twice, or a number that JSON does not have.
    """
    try:
        content = json.loads(data, parse_constant=_no_constant, object_pairs_hook=_unique)
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except ValueError as error:
        raise _malformed(" ".join(str(error).split())[:200]) from None
    if not isinstance(content, dict):
        raise _malformed("its top level is no object")
    return content


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("an object has a key twice")
    return content


def _malformed(reason: str, *, kind: str = "JSON") -> ApiError:
    return ApiError(
        400, f"the body is not valid {kind}: {reason}", code="malformed_body", allowed="an object of fields"
    )


async def _read_form(request: Request, max_bytes: int) -> Body:
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=1, max_fields=_MAX_FIELDS, max_part_size=_MAX_FIELD_BYTES
    )
    parser.spool_max_size = max_bytes + 1  # nothing goes to the disk
    try:
        form = await parser.parse()
    except ApiError:
        raise
    except Exception as error:  # noqa: BLE001 - a parser that reads hostile bytes can raise anything
        reason = getattr(error, "message", "") or "its parts cannot be told apart"
        raise _malformed(str(reason)[:200], kind="multipart/form-data") from None
    try:
        return await _collect(form.multi_items())
    finally:
        await form.close()


async def _collect(items: list[tuple[str, str | UploadFile]]) -> Body:
    fields: dict[str, Any] = {}
    image: bytes | None = None
    for name, value in items:
        if isinstance(value, UploadFile):
            if name != _IMAGE:
                raise ApiError(
                    400, f"there is no file {name[:100]!r} here", code="unknown_parameter", param=name[:100],
                    allowed=_IMAGE, nearest=_IMAGE,
                )  # fmt: skip
            image = _once(image, await value.read())
        elif name in (_IMAGE, _URL_FIELD):
            image = _once(image, image_from_url(value))
        elif name.endswith("[]"):
            fields.setdefault(name.removesuffix("[]"), []).append(value)
        elif name in fields:
            raise ApiError(
                400, f"{name[:100]} was given twice", code="duplicate_field", param=name[:100], allowed="once"
            )
        else:
            fields[name] = value
    return Body(fields, image, is_form=True)


def _once(before: bytes | None, image: bytes) -> bytes:
    if before is not None:
        raise ApiError(400, "input_reference was given twice", code="duplicate_field", param=_IMAGE, allowed="once")
    return image


def image_of(value: Any) -> bytes | None:
    """Return the bytes of the image that a JSON body holds.

    Raises:
        ApiError: It is no data URL.
    """
    if value is None:
        return None
    if isinstance(value, dict):
        if set(value) == {"image_url"}:
            value = value["image_url"]
        else:
            raise _no_image(", ".join(map(str, value))[:100])
    if not isinstance(value, str):
        raise _no_image(type(value).__name__)
    return image_from_url(value)


def image_from_url(url: str) -> bytes:
    """Return what a data URL holds; nothing is fetched from anywhere.

    Raises:
        ApiError: It is no data URL.
    """
    found = _DATA_URL.match(url)
    if found is None:
        raise _no_image(url[:40])
    try:
        return base64.b64decode(url[found.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise _no_image("broken base64") from None


def _no_image(got: str) -> ApiError:
    return ApiError(
        400, f"input_reference is no image: {got}", code="invalid_value", param=_IMAGE,
        allowed="a file in multipart/form-data, or image_url with a data URL (data:image/png;base64,…)",
    )  # fmt: skip
