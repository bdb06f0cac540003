"""One plugin that implements every hook, loaded as an installed one is: each is used, and its result understood."""

from __future__ import annotations

import sys

import pytest
from importlib_metadata import EntryPoint

from fastvideo_core.errors import PluginError
from fastvideo_core.extend import (
    ENTRY_POINT_GROUP,
    AttentionBackendSpec,
    ConfigSection,
    DoctorCheck,
    InterceptorSpec,
    MethodSpec,
    NodeSpec,
    ObserverSpec,
    ProgramTemplate,
    RewardSpec,
    SamplerSpec,
    ServerPartSpec,
    TransportSpec,
    load_plugins,
)
from fastvideo_core.extend.collect import collect_specs
from fastvideo_core.extend.commands import collect_commands
from fastvideo_core.extend.extensions import Extensions
from fastvideo_core.extend.hooks import hook_infos

MODULE = """
from fastvideo_core.extend import *

HOOK_VERSIONS = ">=1.0,<2"

@hookimpl
def model_cards():
    return []

@hookimpl
def card_from_layout(source, index, configs):
    return None

@hookimpl
def hub_repositories():
    return {}

@hookimpl
def cli_commands():
    return {"every": Command("all of it", "every_hook_plugin")}

@hookimpl
def config_sections():
    return [ConfigSection("every", "every_hook_plugin:Section")]

@hookimpl
def samplers():
    return [SamplerSpec("heun", "every_hook_plugin:HEUN", "second order")]

@hookimpl
def attention_backends():
    return [AttentionBackendSpec("flash", "every_hook_plugin:flash", devices=("cuda",))]

@hookimpl
def observers():
    return [ObserverSpec("watch", "every_hook_plugin:Watch")]

@hookimpl
def interceptors():
    return [InterceptorSpec("cache", "every_hook_plugin:Cache", level="block", declared_error=0.01)]

@hookimpl
def transports():
    return [TransportSpec("wire", "every_hook_plugin:Wire", crosses_hosts=True)]

@hookimpl
def training_methods():
    return [MethodSpec("nft", "every_hook_plugin:Nft", roles=("student", "old"))]

@hookimpl
def rewards():
    return [RewardSpec("judge", "every_hook_plugin:Judge")]

@hookimpl
def workflow_nodes():
    return [NodeSpec("sampler", "every_hook_plugin:compile_node", node_type="KSampler", outputs=("LATENT",))]

@hookimpl
def program_templates():
    return [ProgramTemplate("upscale", "every_hook_plugin:UPSCALE", version="2")]

@hookimpl
def server_parts():
    return [ServerPartSpec("gallery", "every_hook_plugin:make_gallery", section="gallery")]

@hookimpl
def doctor_checks():
    return [DoctorCheck("kernels", "every_hook_plugin:ask")]
"""
SPECS = {
    "attention_backends": AttentionBackendSpec,
    "config_sections": ConfigSection,
    "doctor_checks": DoctorCheck,
    "interceptors": InterceptorSpec,
    "observers": ObserverSpec,
    "program_templates": ProgramTemplate,
    "rewards": RewardSpec,
    "samplers": SamplerSpec,
    "server_parts": ServerPartSpec,
    "training_methods": MethodSpec,
    "transports": TransportSpec,
    "workflow_nodes": NodeSpec,
}


@pytest.fixture
def available(tmp_path, monkeypatch):
    (tmp_path / "every_hook_plugin.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield [EntryPoint(name="interceptor.every", value="every_hook_plugin", group=ENTRY_POINT_GROUP)]
    sys.modules.pop("every_hook_plugin", None)


def test_it_implements_every_hook(available):
    (plugin,) = load_plugins(names=["interceptor.every"], available=available, strict=True).plugins
    assert set(plugin.hooks) == {info.name for info in hook_infos()}


@pytest.mark.parametrize("hook", SPECS)
def test_what_it_brings_is_gathered(hook, available):
    registry = load_plugins(names=["interceptor.every"], available=available)
    found, registry = collect_specs(registry, hook, SPECS[hook])
    assert len(found) == 1
    assert registry.failed == ()


def test_it_is_on_when_it_is_named_and_nothing_that_it_names_is_imported(available):
    extensions = Extensions.load({"interceptor.every": {}}, available=available, strict=True)
    assert list(extensions.interceptors) == ["cache"]
    assert list(extensions.observers) == ["watch"]
    assert (list(extensions.samplers), list(extensions.attention_backends)) == (["heun"], ["flash"])
    assert list(extensions.transports) == ["wire"]
    assert (list(extensions.training_methods), list(extensions.rewards)) == (["nft"], ["judge"])
    assert extensions.workflow_nodes["KSampler"].implementation == "every_hook_plugin:compile_node"
    assert extensions.server_parts["gallery"].plugin == "interceptor.every"
    commands, _ = collect_commands(extensions.registry)
    assert list(commands) == ["every"]
    assert not Extensions.load(available=available).has_hooks


def test_two_nodes_of_one_type_are_told_of(available, tmp_path):
    (tmp_path / "other_nodes_plugin.py").write_text(
        "from fastvideo_core.extend import NodeSpec, hookimpl\n"
        "@hookimpl\ndef workflow_nodes():\n"
        "    return [NodeSpec('another', 'other_nodes_plugin:compile_node', node_type='KSampler')]\n"
    )
    other = EntryPoint(name="workflow.other", value="other_nodes_plugin", group=ENTRY_POINT_GROUP)
    named = {"interceptor.every": {}, "workflow.other": {}}
    extensions = Extensions.load(named, available=[*available, other])
    (failed,) = extensions.failed
    assert failed.error.startswith("workflow_nodes gave one for the type 'KSampler', as ")
    assert list(extensions.workflow_nodes) == ["KSampler"]
    with pytest.raises(PluginError, match="for the type 'KSampler'"):
        Extensions.load(named, available=[*available, other], strict=True)
    sys.modules.pop("other_nodes_plugin", None)
