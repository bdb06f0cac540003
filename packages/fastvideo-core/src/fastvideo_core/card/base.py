"""What all card contracts share: a frozen, closed pydantic model, and references to objects by name."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints

from fastvideo_core.errors import CardError, FastVideoError, describe_failure

__all__ = ["Contract", "Identifier", "JsonScalar", "ObjectRef", "is_unicode", "resolve_ref"]

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=128)]
"""A lower-case name that is safe in a file name, a URL and a metric label."""

ObjectRef = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
"""`package.module:Name`. A card stays plain data that can be read without importing the model."""

JsonScalar = bool | int | float | str | None


class Contract(BaseModel):
    """Base of every contract: immutable; an unknown field is an error, and so is a number that JSON cannot hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


def resolve_ref(ref: str) -> Any:
    """Import the object that an `ObjectRef` names.

    Raises:
        CardError: There is no such module or no such name in it, or the module fails when it is imported.
    """
    module_name, _, attribute = ref.partition(":")
    try:
        return getattr(import_module(module_name), attribute)
    except FastVideoError:
        raise
    except Exception as error:
        raise CardError(f"the card names {ref!r}, which cannot be imported: {describe_failure(error)}") from error


def is_unicode(text: str) -> bool:
    """Whether UTF-8, and so a file, can hold a text: no stray bytes of a command line, no half of a pair in JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
