from __future__ import annotations

import re

import pytest

from fastvideo_core.errors import PluginError
from fastvideo_core.extend import InterceptorSpec, NodeSpec, ObserverSpec, SamplerSpec, hookimpl, load_plugins
from fastvideo_core.extend.collect import collect_specs

ONE = SamplerSpec("one", "some.module:ONE")
TWO = SamplerSpec("two", "some.module:TWO")


def registry_of(**brought):
    class Plugin:
        def __init__(self, specs):
            self.specs = specs

        @hookimpl
        def samplers(self):
            if isinstance(self.specs, Exception):
                raise self.specs
            return self.specs

    registry = load_plugins(available=())
    for name, specs in brought.items():
        registry.manager.register(Plugin(specs), name=name)
    return registry


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: SamplerSpec("Euler", "a:b"), "SamplerSpec: name 'Euler' is not allowed: lower case"),
        (
            lambda: SamplerSpec("euler", "a.b"),
            "SamplerSpec 'euler': implementation 'a.b' is no reference; allowed: package.module:Name",
        ),
        (
            lambda: InterceptorSpec("x", "a:b", state="State"),
            "InterceptorSpec 'x': state 'State' is no reference; allowed: package.module:Name",
        ),
        (lambda: InterceptorSpec("x", "a:b", level="all"), "level 'all'; allowed: step, block"),
        (lambda: InterceptorSpec("x", "a:b", declared_error=1.5), "declared_error 1.5; allowed: 0 up to 1"),
        (lambda: InterceptorSpec("x", "a:b", max_batch=0), "max_batch 0; allowed: 1 or more"),
        (
            lambda: InterceptorSpec("x", "a:b", distribution_altering=False, declared_error=0.1),
            "declares an error of 0.1 and that it alters nothing",
        ),
        (lambda: ObserverSpec("x", "a:b", request_options=("n",)), "request_options without a model of options"),
        (lambda: NodeSpec("x", "a:b"), "NodeSpec 'x': node_type is empty"),
    ],
)
def test_a_wrong_description_is_refused(make, why):
    with pytest.raises(PluginError, match=re.escape(why)):
        make()


def test_what_plugins_bring_is_there_by_name():
    found, registry = collect_specs(registry_of(b=[TWO], a=(ONE,), c=None), "samplers", SamplerSpec)
    assert [(name, one.plugin, one.spec) for name, one in found.items()] == [("one", "a", ONE), ("two", "b", TWO)]
    assert registry.failed == ()


@pytest.mark.parametrize(
    ("brought", "why"),
    [
        (ONE, "samplers gave a SamplerSpec; allowed: a sequence of SamplerSpec"),
        (5, "samplers gave a int; allowed: a sequence"),
        ([ONE, "two"], "samplers gave a str; allowed: SamplerSpec"),
        ([TWO, TWO], "samplers gave two of the name 'two'"),
        ([ONE], "samplers gave names that are taken, one"),
        ([SamplerSpec("core", "a:b")], "samplers gave names that are taken, core"),
        (ValueError("broken"), "ValueError: broken"),
    ],
)
def test_a_plugin_that_brings_what_is_wrong_fails_alone(brought, why):
    found, registry = collect_specs(registry_of(a=[ONE], b=brought), "samplers", SamplerSpec, taken=("core",))
    assert list(found) == ["one"]
    assert [(plugin.name, plugin.error.startswith(why)) for plugin in registry.failed] == [("b", True)]
