from __future__ import annotations

import logging

from fastvideo_core.runtime import engine as engine_module
from fastvideo_core.runtime.engine import Engine
from fastvideo_testing.tiny import tiny_card


def test_what_is_read_is_logged(tiny_folder, caplog):
    with caplog.at_level(logging.INFO, "fastvideo_core.runtime.loading"), Engine.open(tiny_card(tiny_folder)):
        lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[0] for line in lines] == ["text_encoder", "transformer", "vae"]
    assert all(" tensors (" in line and " on cpu" in line for line in lines)


def test_a_download_is_told_of(tiny_folder, monkeypatch):
    load, told = engine_module.load_instance, []

    def load_slowly(card, *, on_progress, **options):
        on_progress(1, 2)
        return load(card, **options)

    monkeypatch.setattr(engine_module, "load_instance", load_slowly)
    with Engine.open(tiny_card(tiny_folder), on_progress=lambda *amounts: told.append(amounts)):
        assert told == [(1, 2)]
