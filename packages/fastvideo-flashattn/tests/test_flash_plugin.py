"""The plugin as the deploy config and the doctor meet it, on a machine without flash-attn and on a made-up one with."""

from __future__ import annotations

import pytest
import torch

from fastvideo_core.cli.main import main
from fastvideo_core.deploy import deploy, resolve_config
from fastvideo_core.errors import ConfigError, ParameterError
from fastvideo_core.runtime.attention import choose_attention

ON = [("plugins", {"attention.flash": {}})]


@pytest.fixture
def config(tmp_path):
    def write(attention):
        path = tmp_path / "deploy.yaml"
        path.write_text(f"plugins:\n  attention.flash:\nattention: {attention}\n")
        return path

    return write


@pytest.mark.parametrize("name", ["flash", "flash2", "flash3"])
def test_where_it_cannot_run_the_config_is_refused_with_the_reason(name, config, releases, capsys):
    assert main(["config", "check", str(config(name))]) == 2
    told = capsys.readouterr().err
    assert f"attention='{name}'" in told
    assert "deploy.yaml, line 3: cannot run here: flash-attn" in told
    assert "is not installed; " in told
    assert "allowed: sdpa" in told


def test_a_request_is_refused_before_any_weights(config, releases, capsys, tmp_path):
    code = main(["generate", "x", "--config", str(config("flash")), "-o", str(tmp_path / "x.mp4")])
    told = capsys.readouterr().err
    assert code == 2
    assert "loading" not in told


def test_the_doctor_says_why(config, releases, capsys):
    main(["doctor", "--config", str(config("sdpa"))])
    lines = capsys.readouterr().out.splitlines()
    answers = {line.split("  ")[0]: line for line in lines if line.startswith("flash-attn")}
    assert set(answers) == {"flash-attn-2", "flash-attn-3"}
    assert "no: flash-attn 2 is not installed; pip install flash-attn --no-build-isolation" in answers["flash-attn-2"]


def test_torchs_own_is_the_default(releases):
    deployment = deploy(resolve_config(assignments=ON))
    card = deployment.find_card()
    assert deployment.attention(card) == "sdpa"
    assert choose_attention(deployment.extensions_for(card), card) is None


def test_where_it_can_run_it_is_chosen_and_takes_half_formats_on_a_device(releases, device, kernel):
    releases["flash-attn"] = "2.8.3"
    device((8, 0))
    calls = kernel(2, lambda q, k, v, scale: q)
    deployment = deploy(resolve_config(assignments=[*ON, ("attention", "flash")]))
    card = deployment.find_card()
    backend = choose_attention(deployment.extensions_for(card), card)
    assert backend.spec.name == "flash"
    backend.check(torch.device("cuda"), "bfloat16")
    for place, precision in (("cpu", "bfloat16"), ("cuda", "float32")):
        with pytest.raises(ParameterError, match="does not run in it"):
            backend.check(torch.device(place), precision)
    half = torch.zeros(1, 2, 1, 8, dtype=torch.bfloat16)
    assert torch.equal(backend.function(half, half, half), half)
    assert len(calls) == 1


def test_without_the_plugin_the_name_is_unknown(releases):
    deployment = deploy(resolve_config(assignments=[("attention", "flash")]))
    with pytest.raises(ConfigError, match="no plugin that is on brings such a backend"):
        deployment.attention(deployment.find_card())
