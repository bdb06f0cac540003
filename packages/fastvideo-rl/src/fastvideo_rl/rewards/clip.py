"""Rewards by a CLIP model of a local folder: how alike a prompt and the frames are.

`ClipScore` is the cosine of the two embeddings, `PickScore` the same times the model's own logit scale, as the model of
that name was trained to be read.

Sources: Radford et al. 2021, arXiv:2103.00020; Kirstain et al. 2023, arXiv:2305.01569.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fastvideo_core.errors import CheckpointError, describe_failure
from fastvideo_rl.rewards.base import Sample
from fastvideo_rl.rewards.pictures import chosen_frames, mean_by_sample

__all__ = ["ClipOptions", "ClipScore", "PickScore"]


class ClipOptions(BaseModel):
    """Options.

    Attributes:
        folder: Folder of a CLIP model with its tokenizer and image processor, as transformers writes them.
        num_frames: Frames of a sample that are looked at; their scores are averaged.
        device: Where the model is.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    folder: str
    num_frames: int = Field(default=4, ge=1)
    device: str = "cpu"


class ClipScore:
    """The cosine of the embeddings of prompt and frames, averaged over frames.

    Args:
        options: Which model.

    Raises:
        CheckpointError: The folder does not hold such a model in safetensors.
    """

    def __init__(self, options: ClipOptions) -> None:
        self._options = options
        self._model, self._tokenizer, self._processor = _load(options)

    def score(self, samples: Sequence[Sample]) -> list[float]:
        """Return a score for each sample."""
        frames = [chosen_frames(sample, self._options.num_frames) for sample in samples]
        flat = [frame for some in frames for frame in some]
        with torch.no_grad():
            images = self._embed_images(flat)
            texts = self._embed_texts([sample.prompt for sample in samples])
            counts = [len(some) for some in frames]
            rows = torch.repeat_interleave(torch.arange(len(samples)), torch.tensor(counts)).to(texts.device)
            cosines = (images * texts[rows]).sum(dim=-1) * self._scale()
        return mean_by_sample(cosines.float().tolist(), counts)

    def _scale(self) -> Tensor | float:
        return 1.0

    def _embed_images(self, frames: Sequence[Any]) -> Tensor:
        pixels = self._processor(images=list(frames), return_tensors="pt")["pixel_values"].to(self._options.device)
        return _normalized(self._model.get_image_features(pixel_values=pixels))

    def _embed_texts(self, prompts: Sequence[str]) -> Tensor:
        tokens = self._tokenizer(list(prompts), padding=True, truncation=True, return_tensors="pt")
        ids, mask = (tokens[name].to(self._options.device) for name in ("input_ids", "attention_mask"))
        return _normalized(self._model.get_text_features(input_ids=ids, attention_mask=mask))


class PickScore(ClipScore):
    """The same, times the exponential of the model's logit scale."""

    def _scale(self) -> Tensor:
        scale: Tensor = self._model.logit_scale.exp()
        return scale


def _normalized(found: Any) -> Tensor:
    # Newer versions of the library give an output object with the pooled embedding in place of the embedding.
    features: Tensor = found if isinstance(found, Tensor) else found.pooler_output
    unit: Tensor = features / features.norm(dim=-1, keepdim=True)
    return unit


def _load(options: ClipOptions) -> tuple[Any, Any, Any]:
    from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

    folder = Path(options.folder).expanduser()
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; allowed: a local folder with a CLIP model")
    try:
        model = CLIPModel.from_pretrained(str(folder), local_files_only=True, use_safetensors=True)
        tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        processor = CLIPImageProcessor.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:
        raise CheckpointError(f"{folder} holds no CLIP model: {describe_failure(error)}") from error
    return model.to(options.device).eval().requires_grad_(False), tokenizer, processor
