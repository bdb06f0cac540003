from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from fastvideo_core.errors import MediaError, StateError
from fastvideo_core.request.artifacts import VideoArtifact
from fastvideo_core.request.media.embedded import read_provenance
from fastvideo_core.request.provenance import Provenance


def save(path, **options):
    return VideoArtifact(np.zeros((2, 8, 8, 3), np.uint8), 16, **options).save(path)


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_long_prompts_fit(tmp_path, suffix):
    prompt = "a red circle moving right; größer = 'besser' \\ \"圆\"\n" * 100
    made = Provenance(node="n", card_id="c", parameters={"prompt": {"value": prompt, "source": "request"}}, software={})
    saved = save(tmp_path / f"out{suffix}", provenance=made)
    assert read_provenance(saved.path) == made
    assert read_provenance(str(saved.sidecar)) == made


@pytest.mark.parametrize("suffix", [".mp4", ".webm", ".gif", ".png"])
def test_files_without_provenance(tmp_path, suffix):
    assert read_provenance(save(tmp_path / f"out{suffix}").path) is None


def test_other_json_has_none(tmp_path):
    for text in ("[]", "{}", '{"a": 1}'):
        (tmp_path / "a.json").write_text(text)
        assert read_provenance(tmp_path / "a.json") is None


def test_a_later_schema_is_an_error(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"schema_version": 99, "node": "n", "card_id": "c"}))
    with pytest.raises(StateError, match="schema_version"):
        read_provenance(tmp_path / "a.json")


def test_foreign_comments_are_an_error_not_a_crash(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.gif", comment=b"made by \xff hand")
    with pytest.raises(StateError, match="not a provenance record"):
        read_provenance(tmp_path / "a.gif")


@pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.gif", "a.png", "a.jpg", "a.safetensors", "a.json"])
def test_broken_and_missing_files(tmp_path, name):
    with pytest.raises(MediaError, match="cannot be read"):
        read_provenance(tmp_path / name)
    (tmp_path / name).write_bytes(b"\xff\xfejunk, not a file of that kind")
    with pytest.raises(MediaError, match="cannot be read") as caught:
        read_provenance(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_kinds_that_hold_none(tmp_path):
    with pytest.raises(MediaError, match="holds no provenance"):
        read_provenance(tmp_path / "a.wav")
