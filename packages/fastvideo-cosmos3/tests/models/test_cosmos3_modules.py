"""What the modules do besides what the references do: text in parts, patches that are not full."""

from __future__ import annotations

import torch

from fastvideo_cosmos3.models.config import TransformerConfig
from fastvideo_cosmos3.models.packing import Layout, patchify, unpatchify
from fastvideo_cosmos3.models.transformer import Cosmos3Transformer

TEXT = 37


def plain(config):
    return {name: value for name, value in config.items() if not name.startswith("_")}


def transformer_of(pipeline):
    model = Cosmos3Transformer(TransformerConfig.from_diffusers(plain(pipeline.transformer.config))).eval()
    model.load_state_dict(pipeline.transformer.state_dict())
    return model


def text_tables(model, count, start=0):
    return model.rotary((torch.arange(count, dtype=torch.float32) + start).expand(3, 1, -1))


@torch.no_grad()
def test_text_may_come_in_parts(pipeline):
    model, ids = transformer_of(pipeline), torch.arange(7, 7 + TEXT).unsqueeze(0)
    whole, kept = model.understand(ids, text_tables(model, TEXT))
    first, past = model.understand(ids[:, :20], text_tables(model, 20))
    mask = torch.ones(17, TEXT, dtype=torch.bool).tril(20).view(1, 1, 17, TEXT)
    with_room = torch.nn.functional.pad(past, (0, 0, 0, 0, 0, 17))
    second, more = model.understand(ids[:, 20:], text_tables(model, 17, 20), past_NZBSHD=with_room, mask=mask)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.cat([past, more], dim=3), kept, rtol=1e-5, atol=1e-5)


def test_latents_that_fill_no_patch_come_back_whole():
    latents = torch.randn(1, 4, 2, 3, 5)
    layout = Layout(2, 3, 5, (), fps=24.0)
    patches = patchify(latents, 2)
    assert patches.shape == (layout.video_tokens, 16)
    assert torch.equal(unpatchify(patches, layout), latents)
