"""What a deploy config holds. Only what alters a default need be written; sections of plugins stand beside these."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ByteSize, ConfigDict, Field, StringConstraints

from fastvideo_core.defaults import DEFAULT_CARD

__all__ = [
    "CardConfig",
    "DeployConfig",
    "LatencyClassConfig",
    "LimitsConfig",
    "OutputConfig",
    "PluginConfig",
    "PoolConfig",
]

PluginName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*\.[a-z0-9][a-z0-9._-]*$")]
DeviceName = Annotated[str, StringConstraints(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]


PoolName = Literal["main"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PluginConfig(_Section):
    """A plugin that is switched on, or off."""

    enabled: bool = Field(default=True, description="false switches an installed model or command off")
    options: dict[str, Any] = Field(default_factory=dict, description="the plugin's own options")


class CardConfig(_Section):
    """How one card is run."""

    device: DeviceName | None = Field(default=None, description="in place of the config's device")
    precision: str | None = Field(default=None, description="in place of the config's number format")
    attention: str | None = Field(default=None, description="in place of the config's attention backend")
    parameters: dict[str, Any] = Field(default_factory=dict, description="defaults in place of the card's")
    without: tuple[PluginName, ...] = Field(default=(), description="plugins that are off for this card")


class PoolConfig(_Section):
    """Workers that share a device's memory."""

    devices: tuple[DeviceName, ...] = Field(default=("auto",), min_length=1, description="devices of the pool")
    workers: int = Field(default=1, ge=1, le=64, description="threads that run steps on each device")


class LimitsConfig(_Section):
    """What requests may take, all together."""

    memory: ByteSize | None = Field(
        default=None, gt=0, description="bytes besides the weights, such as 8GiB; null measures"
    )
    max_running: int = Field(default=16, ge=1, description="requests that have started and not ended")
    max_queued: int = Field(default=1024, ge=1, description="requests that wait for their start; more are refused")
    max_batch: int = Field(default=32, ge=1, description="steps in one call")
    jumbo_s: float = Field(default=1.0, gt=0, description="seconds above which a step counts as a long one")


class LatencyClassConfig(_Section):
    """How urgent the requests of a class are."""

    rank: int | None = Field(default=None, description="lower goes first; null is the class's own")
    patience_s: float | None = Field(default=None, gt=0, description="seconds of waiting after which it goes first")
    deadline_s: float | None = Field(default=None, gt=0, description="seconds by which a request is due")


class OutputConfig(_Section):
    """Where results go."""

    folder: Path = Field(default=Path("outputs"), description="folder of results that are given no name")
    format: str = Field(default="mp4", description="format of these: mp4, webm, gif, png or safetensors")


class DeployConfig(_Section):
    """The deploy config of FastVideo."""

    schema_version: Literal[1] = Field(default=1, description="version of this file's layout")
    strict: bool = Field(default=True, description="whether a plugin that fails refuses the start")
    plugins: dict[PluginName, PluginConfig] = Field(
        default_factory=dict, description="plugins by name; those that are named are on, unless they say otherwise"
    )
    card: str = Field(default=DEFAULT_CARD, description="the card where none is asked for")
    device: DeviceName = Field(default="auto", description="auto, cpu, cuda or cuda:INDEX")
    precision: str | None = Field(default=None, description="number format; null is the card's own")
    attention: str = Field(default="sdpa", description="attention backend; sdpa is torch's own")
    cards: dict[str, CardConfig] = Field(default_factory=dict, description="by id, folder or hub repository")
    pools: dict[PoolName, PoolConfig] = Field(default_factory=dict, description="worker pools; there is one, main")
    limits: LimitsConfig = LimitsConfig()
    classes: dict[Literal["interactive", "standard", "batch"], LatencyClassConfig] = Field(
        default_factory=dict, description="latency classes of requests"
    )
    output: OutputConfig = OutputConfig()
    costs_file: Path | None = Field(default=None, description="where measured step times are kept between runs")

    @property
    def pool(self) -> PoolConfig:
        """The pool that runs the steps."""
        return self.pools.get("main", PoolConfig())
