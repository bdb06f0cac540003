"""The `comfy` section of the deploy config."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ComfySection"]


class ComfySection(BaseModel):
    """What a server knows of workflows; paths are relative to the folder that it is started in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] = Field(default=(), description="cards of model files, FILE=CARD[:COMPONENT]")
    folders: Path | None = Field(default=None, description="ComfyUI's models folder, where adapters are found")
    extra_model_paths: tuple[Path, ...] = Field(default=(), description="further folders, in YAML")
    products: tuple[Path, ...] = Field(default=(), description="saved workflows that are offered as tasks")
    max_history: int = Field(default=1000, ge=1, description="prompts that have ended and are remembered")
