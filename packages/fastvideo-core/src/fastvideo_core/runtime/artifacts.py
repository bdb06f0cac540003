"""From a loop's result to a named artifact with its provenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fastvideo_core.program.base import ArtifactNode
from fastvideo_core.request.artifacts import (
    Artifact,
    AudioArtifact,
    ImageArtifact,
    LatentArtifact,
    TensorArtifact,
    TextArtifact,
    VideoArtifact,
)
from fastvideo_core.request.provenance import Provenance
from fastvideo_core.runtime.instance import ModelInstance
from fastvideo_core.runtime.prepare import PreparedRequest, plugin_options

__all__ = ["MadeSound", "MadeText", "make_artifact", "make_provenance"]


class MadeText(Protocol):
    """A loop's result that becomes a text."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The tokens."""
        ...

    @property
    def text(self) -> str:
        """What they read as."""
        ...

    @property
    def finish(self) -> str:
        """Why it ended; see `TextArtifact`."""
        ...

    @property
    def num_read(self) -> int:
        """Tokens that were read before it."""
        ...


class MadeSound(Protocol):
    """A loop's result that becomes sound."""

    @property
    def samples(self) -> Any:
        """Float samples (C, N) on any device."""
        ...

    @property
    def sample_rate(self) -> int:
        """Samples a second."""
        ...


def make_artifact(
    node: ArtifactNode,
    value: Any,
    prepared: PreparedRequest,
    instance: ModelInstance,
    *,
    parts: Mapping[str, Any] | None = None,
) -> Artifact:
    """Make the artifact of a node.

    Args:
        node: The node; its modality decides what `value` is.
        value: For video, and for an image, whose first frame is taken: decoded chunks, each uint8 (T, H, W, 3). For
            latents: float32 (1, C, T, H, W). For text a `MadeText`, for audio a `MadeSound`, for action a tensor.
        prepared: The request.
        instance: The model.
        parts: What else belongs to it, by name; a video's `audio` is a `MadeSound`, cut or padded to its length.
    """
    provenance = make_provenance(node, prepared, instance)
    # As its source ran with them: a node may have parameters of its own.
    parameters = prepared.parameters_of(node.source.node)
    carried = {name: parameters[name] for name in node.parameters}
    named: dict[str, Any] = {"name": node.node_id, "provenance": provenance}
    match node.modality:
        case "video":
            video = VideoArtifact(_frames(value), **named, **carried)
            sound = (parts or {}).get("audio")
            if sound is not None:
                video.audio = AudioArtifact(_host(sound.samples), sound.sample_rate).fitted(video.duration_s)
            return video
        case "image":
            return ImageArtifact(_frames(value[:1])[0], **named)
        case "latents":
            return LatentArtifact(_host(value[0].float()), **named, **carried)
        case "audio":
            return AudioArtifact(_host(value.samples), value.sample_rate, **named)
        case "text":
            return TextArtifact(value.token_ids, value.text, finish=value.finish, num_read=value.num_read, **named)
        case "action":
            return TensorArtifact(_host(value), **named)


def _frames(chunks: Any) -> Any:
    return np.concatenate([chunk.cpu().numpy() for chunk in chunks])


def _host(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def make_provenance(node: ArtifactNode, prepared: PreparedRequest, instance: ModelInstance) -> Provenance:
    """Return what made an artifact: card, weights, request and every resolved parameter, texts included.

    What single nodes were given stands under `node.parameter`.
    """
    texts = {name: value for name, value in prepared.inputs.items() if isinstance(value, str)}
    parameters = {
        **{name: {"value": text, "source": "request"} for name, text in texts.items()},
        **prepared.parameters.to_json(),
        **_overrides(prepared),
        **_plugins(prepared, instance),
        "precision": {"value": instance.precision, "source": "engine"},
        "exact": {"value": prepared.request.exact, "source": "request"},
    }
    return Provenance.model_validate(
        {
            "node": node.node_id,
            "request_id": prepared.request.request_id,
            "task": prepared.request.task,
            "card_id": prepared.card.model_id,
            "card_version": prepared.card.version,
            "weights_version": instance.weights_version,
            "parameters": parameters,
            "seed": prepared.parameters.get("seed"),
        }
    )


def _plugins(prepared: PreparedRequest, instance: ModelInstance) -> dict[str, Any]:
    """Return the options of the interceptors that are on, under `plugins.PLUGIN.OPTION`."""
    if instance.hooks is None:
        return {}
    extensions, given = instance.hooks.extensions, prepared.request.plugins
    records: dict[str, Any] = {}
    for name, options in plugin_options(prepared, extensions).items():
        plugin = extensions.interceptors[name].plugin
        records[f"plugins.{plugin}"] = {"value": name, "source": "deploy"}
        for option, value in () if options is None else options.model_dump(mode="json").items():
            source = "request" if option in given.get(plugin, {}) else "deploy"
            records[f"plugins.{plugin}.{option}"] = {"value": value, "source": source}
    return records


def _overrides(prepared: PreparedRequest) -> dict[str, Any]:
    resolved = {node_id: prepared.parameters_of(node_id).to_json() for node_id in prepared.node_parameters}
    given = prepared.request.node_overrides
    return {f"{node_id}.{name}": resolved[node_id][name] for node_id in resolved for name in given[node_id]}
