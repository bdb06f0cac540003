from __future__ import annotations

import re

import pytest

from fastvideo_core.deploy import DeployConfig, resolve_config
from fastvideo_core.deploy.resolve import place_text, split_place
from fastvideo_core.errors import ConfigError


@pytest.fixture
def resolve(tmp_path):
    """Resolve a config from a text, an environment and assignments."""

    def resolve_text(text=None, environment=None, **assignments):
        path = None
        if text is not None:
            path = tmp_path / "deploy.yaml"
            path.write_text(text)
        pairs = [(name.replace("__", "."), value) for name, value in assignments.items()]
        return resolve_config(path, assignments=pairs, environment=environment or {})

    return resolve_text


def test_nothing_given_is_the_defaults(resolve):
    resolved = resolve()
    assert resolved.is_default
    assert resolved.config == DeployConfig()
    assert {origin.layer for _, _, origin in resolved.values()} == {"default"}


def test_the_stronger_layer_wins_and_is_named(resolve):
    text = "limits:\n  max_running: 1\n  max_queued: 2\n  max_batch: 3\n"
    variables = {"FASTVIDEO__LIMITS__MAX_QUEUED": "20", "FASTVIDEO__LIMITS__MAX_BATCH": "30", "OTHER": "x"}
    resolved = resolve(text, variables, limits__max_batch=300)
    limits = resolved.config.limits
    assert (limits.max_running, limits.max_queued, limits.max_batch) == (1, 20, 300)
    origins = {place[1]: origin for place, _, origin in resolved.values() if place[0] == "limits"}
    assert (origins["max_running"].layer, origins["max_running"].line) == ("file", 2)
    assert origins["max_running"].text.endswith("deploy.yaml, line 2")
    assert (origins["max_queued"].layer, origins["max_queued"].text) == (
        "environment",
        "variable FASTVIDEO__LIMITS__MAX_QUEUED",
    )
    assert (origins["max_batch"].layer, origins["max_batch"].text) == ("request", "--set limits.max_batch")
    assert origins["jumbo_s"].layer == "default"


def test_the_environment_names_the_file(tmp_path):
    (tmp_path / "a.yaml").write_text("card: other\n")
    resolved = resolve_config(environment={"FASTVIDEO_CONFIG": str(tmp_path / "a.yaml")})
    assert (resolved.config.card, resolved.path) == ("other", tmp_path / "a.yaml")
    assert resolve_config(environment={"FASTVIDEO_CONFIG": ""}).is_default


def test_empty_sections_and_sizes_are_read(resolve):
    resolved = resolve("plugins:\n  observer.nanwatch:\nlimits:\ncards:\n  a:\noutput: {folder: out}\n")
    assert resolved.config.plugins["observer.nanwatch"].enabled
    assert resolve("limits: {memory: 8GiB}").config.limits.memory == 8 << 30
    assert str(resolved.config.output.folder) == "out"
    assert resolve("pools: {main: {devices: [cpu], workers: 2}}").config.pool.workers == 2


@pytest.mark.parametrize(
    ("text", "line", "field", "why"),
    [
        ("\nlimits:\n  max_runing: 3\n", 3, "limits.max_runing", "no such key; .*nearest: max_running$"),
        ("limits:\n  max_running: many\n", 2, "limits.max_running", "'many': .*line 2: .*valid integer"),
        ("limits:\n  max_running: 0\n", 2, "limits.max_running", "greater than or equal to 1"),
        ("limits: 3\n", 1, "limits", "dictionary"),
        ("plugins:\n  nanwatch: {}\n", 2, "plugins.nanwatch", "no such key; allowed: KIND.NAME"),
        ("plugins:\n  a.b:\n    option: 1\n", 3, "plugins.a.b.option", "nearest: options"),
        ("pools:\n  other: {}\n", 2, "pools.other", "allowed: main"),
        ("classes:\n  interactiv: {}\n", 2, "classes.interactiv", "nearest: interactive"),
        ("cards:\n  wan2.1:\n    paramters: {}\n", 3, 'cards."wan2.1".paramters', "nearest: parameters"),
        ("device: gpu\n", 1, "device", "not a device; allowed: auto, cpu"),
        ("pools:\n  main:\n    devices: [cpu, tpu]\n", 3, "pools.main.devices.1", "not a device"),
        ("schema_version: 2\n", 1, "schema_version", "Input should be 1"),
        ("strict: maybe\n", 1, "strict", "valid boolean"),
    ],
)
def test_what_is_wrong_is_told_with_line_and_nearest_key(text, line, field, why, resolve):
    with pytest.raises(ConfigError, match=why) as caught:
        resolve(text)
    assert (caught.value.line, caught.value.field) == (line, field)
    assert "\n" not in str(caught.value)


def test_what_is_wrong_elsewhere_is_told_with_its_flag_or_variable(resolve):
    with pytest.raises(ConfigError, match=r"limits.max_runnin=3: --set limits.max_runnin: .*nearest: max_running"):
        resolve(limits__max_runnin=3)
    with pytest.raises(ConfigError, match=r"variable FASTVIDEO__LIMITS__MAX_BATCH: .*greater than or equal to 1"):
        resolve(environment={"FASTVIDEO__LIMITS__MAX_BATCH": "0"})
    with pytest.raises(ConfigError, match="there is a plain value in the way"):
        resolve("card: x\n", card__name="x")


def test_sections_that_are_not_cores_are_kept_for_their_owners(resolve):
    resolved = resolve("server:\n  port: 80\ncard: x\n")
    assert resolved.sections == {"server": {"port": 80}}
    assert (("server", "port"), 80) in [(place, value) for place, value, _ in resolved.values()]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("limits.max_running", ("limits", "max_running")),
        ('cards."wan2.1-t2v".precision', ("cards", "wan2.1-t2v", "precision")),
        ("plugins.interceptor.hold.options.period", ("plugins", "interceptor.hold", "options", "period")),
    ],
)
def test_dotted_keys(key, place):
    assert split_place(key) == place
    assert place_text(place) == key


def test_quoted_plugins_are_the_same():
    assert split_place('plugins."interceptor.hold".enabled') == split_place("plugins.interceptor.hold.enabled")


@pytest.mark.parametrize("key", ["a..b", ".a", "a.", 'a."b', 'a."b"c'])
def test_broken_keys_are_refused(key):
    with pytest.raises(ConfigError, match=re.escape(f"set='{key}'")):
        split_place(key)
