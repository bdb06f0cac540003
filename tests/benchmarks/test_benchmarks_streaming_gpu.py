"""The benchmark of the 1.3B configuration runs: small on the CPU, whole where there is a GPU."""

from __future__ import annotations

import json

import pytest
import torch

import streaming_gpu


def test_a_small_model_of_drawn_weights_streams(capsys):
    streaming_gpu.main(["--small", "--json", "--chunks", "7"])
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["fps_480p"] > 0
    assert figures["fps_480p_over_paper"] == pytest.approx(figures["fps_480p"] / 20.7, rel=1e-2)


def test_too_few_chunks_and_a_missing_gpu_are_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, text in ((["--small", "--chunks", "6"], "7 or more"), ([], "there is no GPU here")):
        with pytest.raises(SystemExit):
            streaming_gpu.main(arguments)
        assert text in capsys.readouterr().err


@pytest.mark.gpu
def test_the_whole_configuration_streams(capsys):
    streaming_gpu.main(["--json", "--chunks", "10"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["fps_480p"] > 0
