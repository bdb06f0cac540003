"""What produced the weights: the provenance half of the (recipe, runtime) pair."""

from __future__ import annotations

from pydantic import Field

from fastvideo_core.card.base import Contract, Identifier, JsonScalar
from fastvideo_core.card.parity import ParityLevel

__all__ = ["DataRef", "RecipeSpec"]


class DataRef(Contract):
    """What a recipe trained on.

    Attributes:
        name: Name of the data set, or of the generator that draws it.
        version: Its revision or content hash.
        license: SPDX identifier, or a description where there is none.
        num_samples: Size, where known.
        description: What it holds, and what must be known to reproduce it.
    """

    name: str
    version: str = ""
    license: str = ""
    num_samples: int | None = Field(default=None, ge=0)
    description: str = ""


class RecipeSpec(Contract):
    """How the weights were made and what they therefore require at serve time.

    Attributes:
        method: "base", "dmd2", "self_forcing", "diffusion_nft", …
        parents: Cards that this one was distilled or trained from.
        data_contract: What it trained on.
        assumes_loop: The loop of the card that these weights require.
        assumes_precision: The precision baked in by the recipe; "any" when it baked in none.
        consistency_required: The lowest parity level under which the recipe's results hold.
        settings: Hyper-parameters worth keeping beside the weights.
    """

    method: str
    parents: tuple[str, ...] = ()
    data_contract: DataRef
    assumes_loop: Identifier
    assumes_precision: str = "any"
    consistency_required: ParityLevel = ParityLevel.C1
    settings: dict[str, JsonScalar] = Field(default_factory=dict)
