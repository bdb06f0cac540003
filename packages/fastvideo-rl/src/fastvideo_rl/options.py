"""Options of what plugins bring, read and checked: rewards, methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from fastvideo_core.errors import ConfigError, PluginError
from fastvideo_core.extend.base import MethodSpec, RewardSpec
from fastvideo_core.extend.extensions import resolve_plugin_ref

__all__ = ["nearest_name", "read_model", "read_options"]


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like one; None if none is."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=0.5)), None)


def read_options(what: str, spec: MethodSpec | RewardSpec, given: Mapping[str, Any], *, field: str) -> Any:
    """Return options as an object of their model; None where there is none.

    Args:
        what: What they are of, for messages.
        spec: Its description.
        given: What a config says.
        field: Where that is in the config.

    Raises:
        ConfigError: There is no such option, or a value is not allowed.
        PluginError: What the description names is no model of options.
    """
    if spec.options is None:
        if given:
            raise ConfigError(f"{what} has no options", field=field, value=dict(given), allowed="none")
        return None
    model = resolve_plugin_ref(what, spec, "options")
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PluginError(f"{what}: options {spec.options!r} is no pydantic model")
    return read_model(model, given, field=field)


def read_model(model: type[BaseModel], given: Mapping[str, Any], *, field: str) -> Any:
    """Return an object of a model.

    Raises:
        ConfigError: The first thing that is wrong, with its place.
    """
    for name, value in given.items():
        if name not in model.model_fields:
            raise ConfigError(
                "no such setting", field=f"{field}.{name}".lstrip("."), value=value,
                allowed=", ".join(model.model_fields), nearest=nearest_name(name, model.model_fields),
            )  # fmt: skip
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([field, *(str(part) for part in first["loc"])]).strip(".")
        raise ConfigError(first["msg"], field=place, value=first["input"]) from None
