"""One request that thinks and then generates, on weights that are there once."""

from __future__ import annotations

import av
import numpy as np
import pytest
import torch
from safetensors import safe_open

from fastvideo_core.request.build import build_request
from fastvideo_core.runtime.catalog import Catalog
from fastvideo_core.runtime.engine import Engine
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer

SIZE = {"num_frames": 9, "height": 32, "width": 48}
PARAMETERS = {**SIZE, "num_inference_steps": 3, "guidance_scale": 3.0, "seed": 3, "max_tokens": 6}


@pytest.fixture(scope="module")
def engine(folder):
    with Engine.open(Catalog.installed().read_folder(folder), device="cpu") as opened:
        yield opened


def run(engine, task, prompt="a red ball", *, on_event=None, image=None, exact=False, outputs=(), **parameters):
    request = build_request(
        engine.card, prompt, task=task, image=image, outputs=outputs, exact=exact, parameters=parameters
    )
    return engine.submit(request, on_event=on_event).result(100)


def test_text_is_streamed_and_one_file_has_the_sound(engine, tmp_path):
    events = []
    result = run(engine, "omni", on_event=events.append, outputs=("video", "text"), **PARAMETERS)
    deltas = [event for event in events if event.type == "text.delta"]
    assert "".join(event.text for event in deltas) == result.artifacts["text"].text
    assert [event.index for event in deltas] == list(range(len(deltas)))
    assert [event.is_final for event in deltas] == [False] * (len(deltas) - 1) + [True]
    first_frame = next(event.sequence for event in events if event.type == "media.chunk")
    assert deltas[0].sequence < first_frame

    path = tmp_path / "clip.mp4"
    result.video.save(path)
    with av.open(str(path)) as container:
        picture, sound = container.streams.video[0], container.streams.audio[0]
        assert (picture.average_rate, sound.rate, sound.channels) == (24, 8000, 2)
        assert sum(1 for _ in container.decode(picture)) == 9
    assert result.video.audio.samples.shape == (2, 3000)
    assert result.video.audio.duration_s == result.video.duration_s


def test_actions_come_with_thoughts_video_and_sound(engine):
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    settings = {"chunk_size": 4, "resolution_tier": "256p", "embodiment": "pusht", "fps": 5.0}
    result = run(
        engine, "omni_policy", image=image, outputs=("video", "text", "actions"), num_inference_steps=2, seed=1,
        max_tokens=4, **settings,
    )  # fmt: skip
    assert result.artifacts["actions"].tensor.shape == (4, 2)
    assert len(result.artifacts["text"].token_ids) == 4
    assert result.video.frames.shape == (5, 48, 64, 3)
    assert result.video.audio.samples.shape == (2, 8000)


@pytest.mark.parametrize(("task", "reads"), [("text_to_video", [1, 1]), ("omni", [1, 1, 1, 1, 1, 1, 1, 1])])
def test_the_text_is_read_once_a_request(engine, monkeypatch, task, reads):
    """Prompt and negative prompt are read once, thoughts a token at a time, their end once; no step reads text."""
    seen = []
    understand = Cosmos3Transformer.understand

    def counted(self, ids_BS, *args, **kwargs):
        seen.append(ids_BS.shape[0])
        return understand(self, ids_BS, *args, **kwargs)

    monkeypatch.setattr(Cosmos3Transformer, "understand", counted)
    parameters = {name: value for name, value in PARAMETERS.items() if task == "omni" or name != "max_tokens"}
    run(engine, task, exact=True, **parameters)
    assert seen == reads


def test_weights_are_there_once(engine, folder):
    instance = engine.instance
    places = [
        tensor.untyped_storage().data_ptr()
        for name in ("transformer", "vae", "sound_tokenizer", "vision_encoder")
        for tensor in instance.component(name).parameters()
    ]
    assert len(places) == len(set(places))
    on_disk = 0
    for file in folder.glob("*/*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            on_disk += sum(opened.get_tensor(name).nbytes for name in opened.keys())
    assert instance.num_bytes == on_disk
    using = {loop for loop, spec in engine.card.loops.items() if "transformer" in spec.components}
    assert using == {"ar_prefill", "ar_decode", "diffusion_denoise"}


def test_sound_is_loaded_for_tasks_that_ask_for_it(folder):
    card = Catalog.installed().read_folder(folder)
    with Engine.open(card, device="cpu", tasks=("text_to_video",)) as silent:
        assert not silent.instance.has_component("sound_tokenizer")
        assert not silent.instance.has_component("vision_encoder")
        assert silent.instance.has_component("vae")
    with Engine.open(card, device="cpu", tasks=("reasoning_text",)) as chat:
        assert not chat.instance.has_component("vae")
    assert set(card.components["sound_tokenizer"].required_for) == {
        "text_to_video_sound", "image_to_video_sound", "video_to_video_sound", "policy_sound", "omni", "omni_policy",
    }  # fmt: skip


def test_stop_strings_end_an_answer_and_are_cut_off(engine):
    whole = run(engine, "reasoning_text", "hi", max_tokens=24, seed=0).artifacts["text"]
    stop = next(whole.text[i : i + 2] for i in range(4, len(whole.text) - 2) if whole.text[i : i + 2].isprintable())
    events = []
    cut = run(engine, "reasoning_text", "hi", max_tokens=24, seed=0, stop=[stop, "never there"], on_event=events.append)
    expected = whole.text[: whole.text.index(stop)]
    assert cut.artifacts["text"].text == expected
    assert "".join(event.text for event in events if event.type == "text.delta") == expected
    assert len(cut.artifacts["text"].token_ids) < len(whole.token_ids)


def test_drawn_answers_follow_the_seed(engine):
    settings = {"max_tokens": 12, "temperature": 1.5, "top_k": 50, "top_p": 0.95}
    one, again, other = (
        run(engine, "reasoning_text", "hi", seed=seed, **settings).artifacts["text"].token_ids for seed in (1, 1, 2)
    )
    assert one == again
    assert one != other


def test_a_flat_checkpoint_is_the_same_model(engine, tmp_path):
    from transformers import Cosmos3OmniForConditionalGeneration

    from fastvideo_cosmos3.testing import write_checkpoint

    flat = write_checkpoint(tmp_path / "flat", layout="flat")
    with Engine.open(Catalog.installed().read_folder(flat), device="cpu") as other:
        ours, theirs = (one.instance.component("transformer").state_dict() for one in (engine, other))
        assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
        text = run(other, "reasoning_text", "hi", max_tokens=8, seed=0).artifacts["text"].token_ids
    model = Cosmos3OmniForConditionalGeneration.from_pretrained(flat, dtype=torch.float32)
    ids = engine.instance.component("text_tokenizer").encode_chat([{"role": "user", "content": "hi"}])
    with torch.no_grad():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)
    assert text == tuple(expected[0, len(ids) :].tolist())
