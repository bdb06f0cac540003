"""What plugins have the doctor ask: each question, with its answer on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from fastvideo_core.errors import describe_failure
from fastvideo_core.extend.base import DoctorCheck
from fastvideo_core.extend.collect import collect_specs
from fastvideo_core.extend.extensions import resolve_plugin_ref
from fastvideo_core.extend.plugins import PluginRegistry

__all__ = ["Answer", "ask_plugins"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a check says.

    Attributes:
        plugin: The plugin that asks.
        check: Its name.
        is_good: Whether it can run here.
        lines: What is there; or the reason why it cannot.
    """

    plugin: str
    check: str
    is_good: bool
    lines: tuple[str, ...]


def ask_plugins(registry: PluginRegistry) -> list[Answer]:
    """Ask all questions of the loaded plugins; one that fails says so itself."""
    checks, after = collect_specs(registry, "doctor_checks", DoctorCheck)
    known = {plugin.name for plugin in registry.failed}
    answers = [
        Answer(plugin.name, plugin.name, is_good=False, lines=(f"its checks failed: {plugin.error}",))
        for plugin in after.failed
        if plugin.name not in known
    ]
    for name, one in checks.items():
        try:
            given = resolve_plugin_ref(one.plugin, one.spec)()
            lines = (given,) if isinstance(given, str) else tuple(str(line) for line in given or ())
            answers.append(Answer(one.plugin, name, is_good=True, lines=lines or ("it is there",)))
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything, and that is its answer
            answers.append(Answer(one.plugin, name, is_good=False, lines=(f"no: {describe_failure(error)}",)))
    return answers
