"""How the loops of Cosmos3 make up its tasks. Plain data: neither torch nor the model is imported.

One prefill serves the reasoner and the denoiser: in an omni request the text that the reasoner has read and written is
the text that the denoiser sees, with nothing computed again. Video and sound are decoded side by side.
"""

from __future__ import annotations

from fastvideo_core.program import ArtifactNode, ConstantEdge, InlineProgram, InputEdge, ModelLoopNode, TensorEdge
from fastvideo_core.program.base import Edge, Node

__all__ = [
    "FORWARD_DYNAMICS",
    "IMAGE_TO_VIDEO",
    "IMAGE_TO_VIDEO_SOUND",
    "INVERSE_DYNAMICS",
    "OMNI",
    "OMNI_POLICY",
    "POLICY",
    "POLICY_SOUND",
    "REASONING",
    "TEXT_TO_IMAGE",
    "TEXT_TO_VIDEO",
    "TEXT_TO_VIDEO_SOUND",
    "VIDEO_TO_VIDEO",
    "VIDEO_TO_VIDEO_SOUND",
]

_PROMPT = InputEdge(name="prompt")
_IMAGE = InputEdge(name="image")
_VIDEO = InputEdge(name="video")

_ANSWER = TensorEdge(node="answer", output="text")
_LATENTS = TensorEdge(node="denoise", output="latents")
_SOUND = TensorEdge(node="sound", output="sound")

REASONING = InlineProgram(
    program_id="cosmos3.reasoning_text",
    nodes=(
        ModelLoopNode(node_id="look", loop="vision_encode", inputs={"image": _IMAGE, "video": _VIDEO}),
        ModelLoopNode(
            node_id="read",
            loop="ar_prefill",
            inputs={
                "text": ConstantEdge(value="chat"),
                "answers": ConstantEdge(value=True),
                "prompt": _PROMPT,
                "history": InputEdge(name="history"),
                "image": _IMAGE,
                "video": _VIDEO,
                "seen": TensorEdge(node="look", output="seen"),
            },
        ),
        ModelLoopNode(
            node_id="answer", loop="ar_decode", inputs={"context": TensorEdge(node="read", output="context")}
        ),
        ArtifactNode(node_id="text", modality="text", source=_ANSWER),
    ),
)


def _reads(text: str, *, answers: bool, has_view: bool) -> dict[str, Edge]:
    """Return what a prefill is given that reads a prompt."""
    given: dict[str, Edge] = {
        "text": ConstantEdge(value=text),
        "answers": ConstantEdge(value=answers),
        "prompt": _PROMPT,
    }
    return {**given, "image": _IMAGE, "video": _VIDEO} if has_view else given


def _texts(*, is_caption: bool, thinks: bool) -> list[Node]:
    """Return the nodes that read the texts; `context` reads the prompt, or what was thought about it."""
    text, negative = ("caption", "caption_negative") if is_caption else ("prompt", "negative")
    reads = _reads(text, answers=thinks, has_view=is_caption)
    nodes: list[Node] = [
        ModelLoopNode(
            node_id="negative", loop="ar_prefill", inputs=_reads(negative, answers=False, has_view=is_caption)
        )
    ]
    if not thinks:
        return [ModelLoopNode(node_id="context", loop="ar_prefill", inputs=reads), *nodes]
    thought = TensorEdge(node="answer", output="context")
    return [
        ModelLoopNode(node_id="read", loop="ar_prefill", inputs=reads),
        ModelLoopNode(
            node_id="answer", loop="ar_decode", inputs={"context": TensorEdge(node="read", output="context")}
        ),
        ModelLoopNode(
            node_id="context",
            loop="ar_prefill",
            inputs={"text": ConstantEdge(value="close"), "answers": ConstantEdge(value=False), "context": thought},
        ),
        *nodes,
        ArtifactNode(node_id="text", modality="text", source=_ANSWER),
    ]


def _program(
    name: str, *, mode: str = "", has_sound: bool = False, makes: str = "video", thinks: bool = False
) -> InlineProgram:
    """Return a program that generates.

    Args:
        name: Name of the task.
        mode: What is known: "" (nothing), "image", "video", "policy", "forward_dynamics" or "inverse_dynamics".
        has_sound: Whether there is sound.
        makes: "video", "image" or "action".
        thinks: Whether the reasoner writes first.
    """
    is_action = mode in ("policy", "forward_dynamics", "inverse_dynamics")
    sees: dict[str, InputEdge] = {"image": _IMAGE, "video": _VIDEO} if is_action else {}
    edges: dict[str, Edge] = {
        "context": TensorEdge(node="context", output="context"),
        "negative": TensorEdge(node="negative", output="context"),
        "mode": ConstantEdge(value=mode),
        "sound": ConstantEdge(value=has_sound),
        **sees,
    }
    nodes = _texts(is_caption=is_action, thinks=thinks)
    if mode:
        known: dict[str, Edge] = {"mode": ConstantEdge(value=mode), "image": _IMAGE, "video": _VIDEO}
        nodes.append(ModelLoopNode(node_id="known", loop="vae_encode", inputs=known))
        edges["condition"] = TensorEdge(node="known", output="condition")
    if mode == "forward_dynamics":
        edges["actions"] = InputEdge(name="actions")
    nodes.append(ModelLoopNode(node_id="denoise", loop="diffusion_denoise", inputs=edges))
    nodes.append(ModelLoopNode(node_id="decode", loop="vae_decode", inputs={"latents": _LATENTS, **sees}))
    nodes += _artifacts(makes, has_sound=has_sound, has_actions=mode in ("policy", "inverse_dynamics"))
    return InlineProgram(program_id=f"cosmos3.{name}", nodes=tuple(nodes))


def _artifacts(makes: str, *, has_sound: bool, has_actions: bool) -> list[Node]:
    frames = TensorEdge(node="decode", output="frames")
    if makes == "image":
        return [
            ArtifactNode(node_id="image", modality="image", source=frames),
            ArtifactNode(node_id="latents", modality="latents", source=_LATENTS),
        ]
    nodes: list[Node] = []
    if has_sound:
        heard = TensorEdge(node="denoise", output="sound")
        nodes.append(ModelLoopNode(node_id="sound", loop="audio_decode", inputs={"latents": heard}))
        nodes.append(ArtifactNode(node_id="audio", modality="audio", source=_SOUND))
    if has_actions:
        done = TensorEdge(node="denoise", output="actions")
        nodes.append(ArtifactNode(node_id="actions", modality="action", source=done))
    video = ArtifactNode(
        node_id="video",
        modality="video",
        source=frames,
        parts={"audio": _SOUND} if has_sound else {},
        parameters=("fps",),
    )
    return [*nodes, video, ArtifactNode(node_id="latents", modality="latents", source=_LATENTS)]


TEXT_TO_IMAGE = _program("text_to_image", makes="image")
TEXT_TO_VIDEO = _program("text_to_video")
IMAGE_TO_VIDEO = _program("image_to_video", mode="image")
VIDEO_TO_VIDEO = _program("video_to_video", mode="video")
TEXT_TO_VIDEO_SOUND = _program("text_to_video_sound", has_sound=True)
IMAGE_TO_VIDEO_SOUND = _program("image_to_video_sound", mode="image", has_sound=True)
VIDEO_TO_VIDEO_SOUND = _program("video_to_video_sound", mode="video", has_sound=True)
POLICY = _program("policy", mode="policy")
POLICY_SOUND = _program("policy_sound", mode="policy", has_sound=True)
FORWARD_DYNAMICS = _program("forward_dynamics", mode="forward_dynamics")
INVERSE_DYNAMICS = _program("inverse_dynamics", mode="inverse_dynamics")
OMNI = _program("omni", has_sound=True, thinks=True)
OMNI_POLICY = _program("omni_policy", mode="policy", has_sound=True, thinks=True)
