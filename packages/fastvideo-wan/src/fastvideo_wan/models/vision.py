"""Preprocessing of the CLIP vision encoder, as transformers' `CLIPImageProcessor` does it.

The processor of transformers is used as it is: Wan 2.1 checkpoints carry its settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastvideo_core.errors import CheckpointError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

__all__ = ["ImagePreprocessor"]


class ImagePreprocessor:
    """Turns an image into the vision encoder's input.

    Args:
        processor: The image processor of transformers.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    @classmethod
    def from_folder(cls, folder: Path) -> ImagePreprocessor:
        """Read `preprocessor_config.json`.

        Raises:
            CheckpointError: The file is missing or broken.
        """
        from transformers import CLIPImageProcessor

        try:
            return cls(CLIPImageProcessor.from_pretrained(str(folder), local_files_only=True))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{folder} holds no image processor: {' '.join(str(error).split())}") from error

    def __call__(self, image_HWC: npt.NDArray[np.uint8]) -> torch.Tensor:
        """Return float32 pixels (1, 3, S, S)."""
        from PIL import Image

        pixels: torch.Tensor = self._processor(images=Image.fromarray(image_HWC), return_tensors="pt").pixel_values
        return pixels
