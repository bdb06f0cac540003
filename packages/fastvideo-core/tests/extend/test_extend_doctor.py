from __future__ import annotations

from fastvideo_core.errors import ResourceError
from fastvideo_core.extend import DoctorCheck, hookimpl, load_plugins
from fastvideo_core.extend.doctor import Answer, ask_plugins

HERE = "fastvideo_made_up_for_the_doctor"


def test_every_check_has_its_answer(monkeypatch):
    import sys
    import types

    module = types.ModuleType(HERE)

    def refuse():
        raise ResourceError("no such kernels")

    module.good, module.silent, module.refuse = (lambda: ["kernels 2.8", "for sm_90"]), (lambda: None), refuse
    module.broken = lambda: 1 / 0
    monkeypatch.setitem(sys.modules, HERE, module)

    class Plugin:
        @hookimpl
        def doctor_checks(self):
            names = ("good", "silent", "refuse", "broken", "missing")
            return [DoctorCheck(name, f"{HERE}:{name}") for name in names]

    registry = load_plugins(available=())
    registry.manager.register(Plugin(), name="attention.kernels")
    answers = {answer.check: answer for answer in ask_plugins(registry)}
    assert answers["good"] == Answer("attention.kernels", "good", True, ("kernels 2.8", "for sm_90"))
    assert answers["silent"].lines == ("it is there",)
    assert answers["refuse"] == Answer("attention.kernels", "refuse", False, ("no: no such kernels",))
    assert answers["broken"].lines[0].startswith("no: ZeroDivisionError")
    assert "AttributeError" in answers["missing"].lines[0]


def test_a_plugin_whose_checks_cannot_be_had_says_so():
    class Plugin:
        @hookimpl
        def doctor_checks(self):
            return [DoctorCheck("a name", "os:getcwd")]

    registry = load_plugins(available=())
    registry.manager.register(Plugin(), name="attention.kernels")
    (answer,) = ask_plugins(registry)
    assert (answer.check, answer.is_good) == ("attention.kernels", False)
    assert "its checks failed: DoctorCheck: name 'a name' is not allowed" in answer.lines[0]
