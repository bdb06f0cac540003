"""The training config: one YAML file, checked whole before anything is loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastvideo_core.deploy.document import read_document
from fastvideo_core.errors import ConfigError
from fastvideo_rl.options import read_model
from fastvideo_rl.rewards.scorer import RewardChoice

__all__ = [
    "BarConfig",
    "EvaluationConfig",
    "OptimizerConfig",
    "ResultConfig",
    "RolloutConfig",
    "TrainConfig",
    "WeightsConfig",
    "read_config",
]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


_Decay = Annotated[float, Field(ge=0, lt=1)]


class NamedOptions(_Section):
    """Something by its name, with options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class RolloutConfig(_Section):
    """How samples are made.

    Attributes:
        group_size: Samples of a prompt.
        num_groups: Prompts of an outer step, over all processes.
        parameters: Request parameters, over the card's; the method's own go over these.
    """

    group_size: int = Field(default=8, ge=1, le=1024)
    num_groups: int = Field(default=1, ge=1)
    parameters: dict[str, Any] = Field(default_factory=dict)


class OptimizerConfig(_Section):
    """AdamW, and what is done to gradients.

    Attributes:
        learning_rate: Of the student.
        critic_learning_rate: Of a critic; None takes the student's.
        betas: Decays of the moments.
        eps: Added to the denominator.
        weight_decay: Decoupled decay.
        warmup_steps: Outer steps over which the rate rises linearly.
        max_grad_norm: Gradients are scaled down to this norm.
        diverged_norm: Larger norms, before that, end the run.
        num_updates: Optimizer steps in an outer step, each with its part of the items.
        micro_batch: Items of one backward pass; gradients of several are added up.
    """

    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    critic_learning_rate: float | None = Field(default=None, gt=0, le=1)
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    warmup_steps: int = Field(default=0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    diverged_norm: float = Field(default=1e4, gt=0)
    num_updates: int = Field(default=1, ge=1)
    micro_batch: int = Field(default=8, ge=1)


class WeightsConfig(_Section):
    """What is trained.

    Attributes:
        kind: All weights, or low-rank adapters.
        rank: Rank of the adapters.
        alpha: Their scale, times the rank.
        targets: Ends of the names of the layers that get one.
        ema_decay: Decay of the average that is kept beside the student, and shipped; None keeps none.
        is_checkpointed: Whether blocks compute their intermediate values again in the backward pass, to save memory.
    """

    kind: Literal["full", "lora"] = "full"
    rank: int = Field(default=16, ge=1)
    alpha: float = Field(default=16.0, gt=0)
    targets: tuple[str, ...] = ("attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0")
    ema_decay: float | None = Field(default=None, ge=0, lt=1)
    is_checkpointed: bool = False


class ResultConfig(_Section):
    """The card that comes out.

    Attributes:
        model_id: Its id.
        title: One line for lists.
        role: Whose weights are shipped; None takes the average where there is one, else the student's.
        license: SPDX identifier; None keeps the parent's.
        kept: Components that are not copied: the card names the parent's checkpoint as their source, which has to be
            a package's or on the hub.
        distribution_samples: Samples of each set for the check of distributions (C3) whose report is shipped; None
            leaves it out.
    """

    model_id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,127}$")
    title: str = ""
    role: str | None = None
    license: str | None = None
    kept: tuple[str, ...] = ()
    distribution_samples: int | None = Field(default=None, ge=2, le=1024)


class BarConfig(_Section):
    """What a reward has to come to beside the card that the run is measured against.

    Attributes:
        max_loss: By how much it may be lower; None sets no bound.
        min_gain: Share of what was missing to the reward's maximum that has to be gained; None sets no bound.
    """

    max_loss: float | None = Field(default=None, ge=0)
    min_gain: float | None = Field(default=None, ge=0, le=1)


class EvaluationConfig(_Section):
    """What the result is judged by.

    Attributes:
        prompts: Text file with a prompt a line, which were not trained on; None takes the run's.
        rewards: Rewards with their weights; none takes the run's.
        num_samples: How many samples `eval` makes where it is not told.
        parameters: Request parameters of these samples, over each card's own; None takes those of the rollouts.
        bars: What rewards have to come to, by their labels.
    """

    prompts: str | None = None
    rewards: tuple[RewardChoice, ...] = ()
    num_samples: int = Field(default=32, ge=1)
    parameters: dict[str, Any] | None = None
    bars: dict[str, BarConfig] = Field(default_factory=dict)


class TrainConfig(_Section):
    """A run.

    Attributes:
        card: The card that is trained from: an id, a folder, a hub repository.
        task: Its task; None takes the default one.
        student: Function that makes the student's card of it, with options, for distillation into another loop.
        teacher: Card whose samples a distilled student is to match, of the same latents; None takes `card`.
        output: Folder of the run.
        method: The method.
        prompts: Text file with a prompt a line; paths are relative to the config's folder.
        data: Folder of samples, for methods that train on data.
        rollout: How samples are made.
        rewards: Rewards with their weights.
        optimizer: See `OptimizerConfig`.
        weights: See `WeightsConfig`.
        result: See `ResultConfig`.
        evaluation: See `EvaluationConfig`.
        num_steps: Outer steps.
        save_every: Outer steps between two checkpoints; the last step makes one too.
        num_checkpoints: How many are kept.
        sheet_every: Outer steps between two sheets of samples; None makes none.
        num_sheet_samples: Samples of a sheet.
        sync_mode: What becomes of others' requests that are half-way when weights change: "drain" or "restart".
        transport: How weights go to the engine; "direct" hands them over in the process.
        seed: All draws follow from it.
        device: Where everything is.
        precision: Number format in which the engine rolls out; None takes the card's default for the device. Training
            is in float32, so that another one will hardly reach C2.
        caches: Bytes of caches of the engine that rolls out, by name, in place of the card's; rollouts of streams keep
            the keys and values of all their chunks.
        plugins: Further plugins to switch on, by name, with their options.
        wandb_project: Project that Weights & Biases logs to as well, where it is installed; None leaves it out.
    """

    card: str
    task: str | None = None
    student: NamedOptions | None = None
    teacher: str | None = None
    output: str
    method: NamedOptions
    prompts: str | None = None
    data: str | None = None
    rollout: RolloutConfig = RolloutConfig()
    rewards: tuple[RewardChoice, ...] = ()
    optimizer: OptimizerConfig = OptimizerConfig()
    weights: WeightsConfig = WeightsConfig()
    result: ResultConfig
    evaluation: EvaluationConfig = EvaluationConfig()
    num_steps: int = Field(ge=1)
    save_every: int = Field(default=50, ge=1)
    num_checkpoints: int = Field(default=2, ge=1)
    sheet_every: int | None = Field(default=None, ge=1)
    num_sheet_samples: int = Field(default=8, ge=1, le=64)
    sync_mode: Literal["drain", "restart"] = "drain"
    transport: str = "direct"
    seed: int = Field(default=0, ge=0, lt=2**31)
    device: str = "auto"
    precision: Literal["float32", "bfloat16", "float16"] | None = "float32"
    caches: dict[str, Annotated[int, Field(gt=0)]] = Field(default_factory=dict)
    plugins: dict[str, dict[str, Any]] = Field(default_factory=dict)
    wandb_project: str | None = None

    @model_validator(mode="after")
    def _updates_divide(self) -> TrainConfig:
        if self.prompts is None and self.data is None:
            raise ValueError("neither prompts nor data: a run trains on one of them")
        return self

    def fingerprint(self) -> str:
        """Return a digest of all that decides what comes out.

        Where that is written, and for how long it goes on, does not; nor does where the samples and prompts are that
        are trained on, but what they are: `Plan.fingerprint` adds that.
        """
        free = {
            "prompts",
            "data",
            "output",
            "num_steps",
            "save_every",
            "num_checkpoints",
            "sheet_every",
            "num_sheet_samples",
            "device",
            "caches",
        }
        kept = self.model_dump(mode="json", exclude={*free, "wandb_project", "result", "evaluation"})
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:24]

    def check_division(self, world_size: int) -> None:
        """Refuse groups that do not divide among processes.

        Raises:
            ConfigError: With the nearest number that does.
        """
        if self.rollout.num_groups % world_size:
            nearest = max(world_size, round(self.rollout.num_groups / world_size) * world_size)
            raise ConfigError(
                f"does not divide among {world_size} processes", field="rollout.num_groups",
                value=self.rollout.num_groups, allowed=f"multiples of {world_size}", nearest=nearest,
            )  # fmt: skip


def read_config(path: Path) -> TrainConfig:
    """Read a config; paths in it are relative to its folder.

    Raises:
        ConfigError: It cannot be read, or what is wrong in it, with its line.
    """
    document = read_document(path)
    try:
        config: TrainConfig = read_model(TrainConfig, document.content, field="")
    except ConfigError as error:
        place = tuple((error.field or "").split("."))
        line = next((document.lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in document.lines), None)
        where = f"{path}" if line is None else f"{path}, line {line}"
        raise ConfigError(
            f"{error.reason} ({where})", file=path, line=line, field=error.field, value=error.value,
            allowed=error.allowed, nearest=error.nearest,
        ) from None  # fmt: skip
    base = path.resolve().parent
    paths: dict[str, Any] = {
        name: str(base / value) for name in ("prompts", "data", "output") if (value := getattr(config, name))
    }
    if config.evaluation.prompts is not None:
        path_of = str(base / config.evaluation.prompts)
        paths["evaluation"] = config.evaluation.model_copy(update={"prompts": path_of})
    return config.model_copy(update=paths)
