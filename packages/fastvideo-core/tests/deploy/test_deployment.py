from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec

import importlib_metadata
import pytest

from fastvideo_core.deploy import deploy, resolve_config
from fastvideo_core.deploy.schema import config_schema
from fastvideo_core.errors import ConfigError, PluginError, UnknownTaskError
from fastvideo_testing.tiny import tiny_card, write_tiny_checkpoint

needs_wan = pytest.mark.skipif(find_spec("fastvideo_wan") is None, reason="looks at the plugin of fastvideo-wan")

PLUGIN = """
from fastvideo_core.extend import AttentionBackendSpec, ConfigSection, hookimpl
from fastvideo_testing.samples import HOLD, RECORD, REUSE

@hookimpl
def interceptors():
    return [HOLD]

@hookimpl
def observers():
    return [RECORD]

@hookimpl
def attention_backends():
    return [
        AttentionBackendSpec("fast", "deploy_test_plugin:fast"),
        AttentionBackendSpec("gone", "deploy_test_plugin:fast", available="deploy_test_plugin:why_not"),
    ]

def why_not():
    return "no such kernels here"
"""
COMMAND = """
from pydantic import BaseModel, ConfigDict
from fastvideo_core.extend import ConfigSection, hookimpl

class Server(BaseModel):
    model_config = ConfigDict(extra="forbid")
    port: int = 8000

@hookimpl
def config_sections():
    return [ConfigSection("kiosk", "deploy_test_command:Server")]

@hookimpl
def cli_commands():
    return {}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_checkpoint(folder)
    return folder


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Let a plugin be installed that brings an interceptor and an observer, one that owns a section, one that fails."""
    (tmp_path / "deploy_test_plugin.py").write_text(PLUGIN)
    (tmp_path / "deploy_test_command.py").write_text(COMMAND)
    (tmp_path / "deploy_test_failing.py").write_text("import no_such_library\n")
    entries = {
        "interceptor.test": "deploy_test_plugin",
        "command.test": "deploy_test_command",
        "observer.fail": "deploy_test_failing",
    }
    place = tmp_path / "deploy_test-1.0.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: deploy-test\nVersion: 1.0\n")
    lines = "".join(f"{name} = {module}\n" for name, module in entries.items())
    (place / "entry_points.txt").write_text(f"[fastvideo.plugins]\n{lines}")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib_metadata.MetadataPathFinder.invalidate_caches()
    yield
    for module in entries.values():
        sys.modules.pop(module, None)


@pytest.fixture
def deployed(tmp_path):
    """Write a config, and return what it means."""

    def deploy_text(text):
        path = tmp_path / "deploy.yaml"
        path.write_text(text)
        return deploy(resolve_config(path, environment={}))

    return deploy_text


def test_without_names_nothing_is_on_that_alters_anything(installed, deployed):
    deployment = deployed("card: wan-shapes\n")
    assert not deployment.extensions.has_hooks
    assert deployment.extensions.attention_backends == {}
    assert "deploy_test_plugin" not in sys.modules


def test_named_plugins_are_on_with_their_options(installed, deployed):
    deployment = deployed("plugins:\n  interceptor.test:\n    options: {period: 3}\n")
    assert deployment.extensions.named == ("interceptor.test",)
    assert deployment.extensions.interceptors["hold"].options.period == 3
    assert list(deployment.extensions.observers) == ["record"]


@needs_wan
def test_models_can_be_switched_off(installed, deployed):
    assert "wan-shapes" in deployed("").catalog.cards
    assert "wan-shapes" not in deployed("plugins: {model.wan: {enabled: false}}").catalog.cards


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (
            "plugins:\n  interceptor.tset:\n",
            2,
            "plugins.interceptor.tset={}.*is installed.*nearest: interceptor.test",
        ),
        ("plugins:\n  interceptor.test:\n    options:\n      perid: 3\n", 4, "options.perid=3: .*nearest: period"),
        ("plugins:\n  interceptor.test:\n    options: {period: 0}\n", 3, "greater than or equal to 1"),
        ("kisok:\n  port: 1\n", 1, "no plugin that is on owns such a section; .*nearest: kiosk"),
        ("card: x\nkiosk:\n  prt: 1\n", 3, "kiosk.prt=1: .*no such key; allowed: port; nearest: port"),
        ("kiosk:\n  port: many\n", 2, "kiosk.port='many'.*valid integer"),
    ],
)
def test_what_plugins_do_not_take_is_told_with_its_line(text, line, why, installed, deployed):
    with pytest.raises(ConfigError, match=why) as caught:
        deployed(text)
    assert caught.value.line == line


def test_a_section_of_an_owner_is_taken(installed, deployed):
    assert deployed("kiosk: {port: 80}").resolved.sections == {"kiosk": {"port": 80}}
    with pytest.raises(ConfigError, match="no plugin that is on owns such a section"):
        deployed("kiosk: {port: 80}\nplugins: {command.test: {enabled: false}}")


def test_a_plugin_that_fails_refuses_the_start_or_is_told(installed, deployed):
    text = "plugins: {observer.fail: }\n"
    why = r"observer.fail \(deploy-test 1.0\): ModuleNotFoundError: No module named 'no_such_library'"
    with pytest.raises(PluginError, match=why):
        deployed(text)
    assert [plugin.name for plugin in deployed(f"strict: false\n{text}").extensions.failed] == ["observer.fail"]


def test_parameters_of_a_card_stand_above_the_cards(folder, deployed):
    deployment = deployed("cards: {tiny: {parameters: {num_inference_steps: 7}}}")
    card = tiny_card(folder)
    resolved = deployment.resolved_parameters(card, "text_to_video")
    assert (resolved["num_inference_steps"], resolved.source("num_inference_steps")) == (7, "deploy")
    assert resolved.source("height") == "card"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cards: {tiny: {parameters: {stesp: 7}}}", "cards.tiny.parameters.stesp=7.*line 1: no task of the card"),
        ("cards: {tiny: {parameters: {height: 17}}}", "cards.tiny.parameters.height=17: .*line 1"),
        ("precision: float16", "precision='float16': .*line 1: .*allowed: float32, bfloat16"),
        ("cards: {tiny: {precision: float8}}", "cards.tiny.precision='float8'"),
        ("attention: falsh", "attention='falsh': .*no plugin that is on brings"),
        ("cards: {tiny: {without: [interceptor.x]}}", "cards.tiny.without.0='interceptor.x': .*no such plugin is on"),
        ("pools: {main: {devices: [cpu, 'cuda:0']}}", "one device runs a model"),
        ("device: cuda\npools: {main: {devices: [cpu]}}", "device 'cuda' is chosen elsewhere"),
    ],
)
def test_what_a_card_cannot_do_is_told_before_it_is_loaded(text, why, tmp_path, deployed):
    deployment = deployed(text)
    with pytest.raises(ConfigError, match=why):
        deployment.check(tiny_card(tmp_path / "no weights"))


def test_attention_backends_are_checked(installed, deployed, folder):
    plugins = "plugins: {interceptor.test: }\n"
    with pytest.raises(ConfigError, match="cannot run here: no such kernels here; allowed: sdpa"):
        deployed(f"{plugins}attention: gone").attention(tiny_card(folder))
    with pytest.raises(ConfigError, match="no component of card tiny takes another backend"):
        deployed(f"{plugins}attention: fast").attention(tiny_card(folder))


def test_a_plugin_can_be_off_for_a_card(installed, deployed, folder):
    deployment = deployed("plugins: {interceptor.test: }\ncards: {tiny: {without: [interceptor.test]}}")
    assert not deployment.extensions_for(tiny_card(folder)).has_hooks
    assert deployment.extensions_for(tiny_card(folder, model_id="other")).has_hooks


def test_limits_and_classes_reach_the_scheduler(deployed):
    text = """
limits: {memory: 1GiB, max_running: 2, max_queued: 3, max_batch: 4, jumbo_s: 0.5}
classes: {interactive: {deadline_s: 9}, batch: {rank: 7}}
pools: {main: {workers: 2}}
costs_file: costs.json
"""
    options = deployed(text).runtime_options()
    scheduler = options.scheduler
    assert (options.memory_bytes, options.num_workers, str(options.costs_file)) == (1 << 30, 2, "costs.json")
    assert (scheduler.max_running, scheduler.max_queued, scheduler.max_batch, scheduler.jumbo_s) == (2, 3, 4, 0.5)
    assert (scheduler.classes["interactive"].deadline_s, scheduler.classes["interactive"].rank) == (9, 0)
    assert (scheduler.classes["batch"].rank, scheduler.classes["batch"].patience_s) == (7, 20.0)


@needs_wan
def test_the_schema_knows_plugins_and_sections(installed):
    schema = config_schema()
    assert json.loads(json.dumps(schema)) == schema
    properties = schema["properties"]
    assert {"model.wan", "interceptor.test"} <= set(properties["plugins"]["properties"])
    assert properties["kiosk"]["properties"]["port"]["default"] == 8000
    assert properties["limits"] and re.search("max_running", json.dumps(schema["$defs"]["LimitsConfig"]))
    assert schema["additionalProperties"] is False
    assert "deploy_test_plugin" not in sys.modules


def test_a_plugin_whose_cards_fail_refuses_the_start_or_is_told(installed, deployed, tmp_path):
    with (tmp_path / "deploy_test_command.py").open("a") as file:
        file.write("\n@hookimpl\ndef model_cards():\n    return ['no card']\n")
    with pytest.raises(PluginError, match=r"command.test \(deploy-test 1.0\): .*model_cards gave a str; allowed"):
        deployed("card: wan-shapes\n")
    sys.modules.pop("deploy_test_command")
    assert [plugin.name for plugin in deployed("strict: false\n").extensions.failed] == ["command.test"]


def test_an_engine_of_a_config_takes_its_parameters(deployed, tmp_path):
    write_tiny_checkpoint(tmp_path / "model")
    text = f"card: {tmp_path / 'model'}\ncards: {{tiny: {{parameters: {{num_inference_steps: 2, height: 16}}}}}}\n"
    with deployed(text).open() as engine:
        parameters = engine.generate("x", seed=1, width=16, outputs=("latents",)).parameters
        assert [(name, parameters[name], parameters.source(name)) for name in ("num_inference_steps", "height")] == [
            ("num_inference_steps", 2, "deploy"),
            ("height", 16, "deploy"),
        ]
        assert (parameters["width"], parameters.source("width")) == (16, "request")
        assert engine.generate("x", seed=1, height=32, outputs=("latents",)).parameters.source("height") == "request"
        with pytest.raises(UnknownTaskError, match="text_to_smell"):
            engine.submit(engine.make_request("x").model_copy(update={"task": "text_to_smell"}))
