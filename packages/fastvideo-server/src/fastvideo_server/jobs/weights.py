"""Which changes of weights are on: jobs that want the same run beside each other, and others wait until those end."""

from __future__ import annotations

import logging

from fastvideo_core.runtime.engine import Engine
from fastvideo_core.runtime.serving import WeightStack

__all__ = ["ResidentWeights"]

_LOG = logging.getLogger(__name__)


class ResidentWeights:
    """The weights of an engine; changed on one thread at a time, while the engine has no request.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._key: str | None = None
        self._components: list[str] = []

    def has(self, stack: WeightStack | None) -> bool:
        """Whether a job that wants these changes, or None of any, may run now."""
        return self._key == (None if stack is None else stack.key)

    def switch(self, stack: WeightStack | None) -> None:
        """Take off what is on, and put on what a job wants.

        Raises:
            FastVideoError: It cannot be made, or does not fit; the base is there then.
        """
        self._take_off()
        if stack is None:
            return
        try:
            for component, patch in stack.make(self._engine.instance).items():
                took = self._engine.patch_weights(component, patch)
                self._components.append(component)
                _LOG.info(
                    "%s changed by %s in %.3g s (%.3g s predicted)", component, patch.version, took.seconds,
                    took.predicted_s,
                )  # fmt: skip
        except BaseException:
            self._take_off()
            raise
        self._key = stack.key

    def _take_off(self) -> None:
        self._key = None
        while self._components:
            component = self._components.pop()
            took = self._engine.unpatch_weights(component)
            _LOG.info("%s restored in %.3g s (%.3g s predicted)", component, took.seconds, took.predicted_s)
