"""Which node types this compiler knows, and why it refuses others."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache

from fastvideo_comfy.fold.rules import FOLDS, SWITCH
from fastvideo_comfy.graph.flatten import NOTES
from fastvideo_comfy.graph.widgets import WIDGETS

__all__ = ["COMPILED", "INERT", "LINKED", "OUTPUTS", "is_output", "is_understood", "refusal"]

OUTPUTS = ("SaveVideo", "SaveImage")
"""Output nodes that compile."""

INERT: Mapping[str, str] = {
    **dict.fromkeys(NOTES, "a note"),
    **dict.fromkeys(
        ("PreviewImage", "PreviewAny", "PreviewAudio", "PreviewVideo", "MaskPreview", "ImageCompare", "Preview3D"),
        "shows something in ComfyUI's window and writes no file",
    ),
}
"""Types that make no result, and what they do."""

COMPILED = frozenset(
    {
        *OUTPUTS,
        "BasicGuider",
        "BasicScheduler",
        "CFGGuider",
        "CLIPLoader",
        "CLIPTextEncode",
        "CLIPVisionEncode",
        "CLIPVisionLoader",
        "ConditioningZeroOut",
        "CreateVideo",
        "EmptyHunyuanLatentVideo",
        "KSampler",
        "KSamplerAdvanced",
        "KSamplerSelect",
        "LoadImage",
        "LoraLoader",
        "LoraLoaderModelOnly",
        "ModelSamplingSD3",
        "RandomNoise",
        "SamplerCustom",
        "SamplerCustomAdvanced",
        "UNETLoader",
        "VAEDecode",
        "VAEDecodeTiled",
        "VAELoader",
        "Wan22ImageToVideoLatent",
        "WanFirstLastFrameToVideo",
        "WanImageToVideo",
    }
)
"""Types that become part of a program."""

LINKED: Mapping[str, str] = {
    "BasicGuider": "model conditioning",
    "BasicScheduler": "model",
    "CFGGuider": "model positive negative",
    "CLIPTextEncode": "clip",
    "CLIPVisionEncode": "clip_vision image",
    "ConditioningZeroOut": "conditioning",
    "CreateVideo": "images audio",
    "KSampler": "model positive negative latent_image",
    "KSamplerAdvanced": "model positive negative latent_image",
    "LoraLoader": "model clip",
    "LoraLoaderModelOnly": "model",
    "ModelSamplingSD3": "model",
    "SamplerCustom": "model positive negative sampler sigmas latent_image",
    "SamplerCustomAdvanced": "noise guider sampler sigmas latent_image",
    "SaveImage": "images",
    "SaveVideo": "video format.codec codec.encoding",
    "VAEDecode": "samples vae",
    "VAEDecodeTiled": "samples vae",
    "Wan22ImageToVideoLatent": "vae start_image",
    "WanFirstLastFrameToVideo": (
        "positive negative vae clip_vision_start_image clip_vision_end_image start_image end_image"
    ),
    "WanImageToVideo": "positive negative vae clip_vision_output start_image",
}
"""Inputs of compiled types besides their widgets."""

_NO_INPUTS = frozenset({"control_after_generate", "upload", "choose file to upload", "videopreview", "image_upload"})
"""Names under which clients send what is no input of the node."""


def is_understood(node_type: str, input_name: str) -> bool:
    """Whether an input of a compiled type is one that its rule knows; another version of the type may have more."""
    known = {*WIDGETS.get(node_type, ()), *LINKED.get(node_type, "").split()}
    return input_name in known or input_name in _NO_INPUTS


_IMAGES = ("changes images before a card sees them; images are fitted to the video's size", "LoadImage")
_MASKS = ("makes or changes a mask, which no installed card takes", "")
_SOUND = ("no installed card that a workflow can name takes or makes sound", "")
_VIDEO = ("no installed card that a workflow can name takes a video", "LoadImage")
_LATENTS = ("no installed card starts from given latents", "EmptyHunyuanLatentVideo")
_TRACKING = ("needs a segmentation model, and no card has one", "")

_GROUPS: Mapping[tuple[str, str], str] = {
    _IMAGES: """BatchImagesNode Canny ColorTransfer EmptyImage ImageCompositeMasked ImageFromBatch ImageInvert
        ImagePadForOutpaint ImageScale ImageScaleBy ImageScaleToMaxDimension ImageScaleToTotalPixels ImageStitch
        JoinImageWithAlpha Painter RebatchImages RepeatImageBatch ResizeAndPadImage ResizeImageMaskNode""",
    _MASKS: "GrowMask ImageToMask InvertMask LoadImageMask MaskComposite MaskToImage SolidMask",
    _SOUND: """AudioConcat AudioEncoderEncode AudioEncoderLoader LoadAudio RecordAudio SaveAudio SaveAudioAdvanced
        SaveAudioMP3 TrimAudioDuration VAEDecodeAudio""",
    _VIDEO: "GetVideoComponents LoadVideo",
    _LATENTS: "DisableNoise LatentConcat LatentCut LatentCutToBatch LatentUpscale LatentUpscaleBy",
    _TRACKING: "SAM3_Detect SAM3_VideoTrack SCAIL2ColoredMask",
}

_REASONS: Mapping[str, tuple[str, str]] = {
    **{name: reason for reason, names in _GROUPS.items() for name in names.split()},
    "WanVaceToVideo": ("needs a VACE card; there is none", "WanImageToVideo"),
    "TrimVideoLatent": ("cuts reference frames off that only VACE, phantom and the like put in front", "VAEDecode"),
    "MiniMaxH3ImageToVideo": ("needs a MiniMax H3 card; there is none", "WanImageToVideo"),
    "MiniMaxH3SigmaShift": ("shifts video and audio apart, for which a MiniMax H3 card is needed", "ModelSamplingSD3"),
    "BlockSparseAttention": ("patches the model's attention, which no installed card declares", ""),
    "ModelAttentionBackend": ("the deploy config chooses the attention backend, not a workflow", ""),
    "ResolutionSelector": ("its sizes come from a table of ComfyUI's version", "PrimitiveInt"),
    "CosmosPredict2ImageToVideoLatent": ("needs a Cosmos-Predict2 card; there is none", "WanImageToVideo"),
    "CosmosImageToVideoLatent": ("needs a Cosmos card; there is none", "WanImageToVideo"),
    "EmptyCosmosLatentVideo": ("needs a Cosmos card; there is none", "EmptyHunyuanLatentVideo"),
    "WanFunInpaintToVideo": ("needs a Wan Fun inpainting card; there is none", "WanFirstLastFrameToVideo"),
    "WanFunControlToVideo": ("needs a Wan Fun control card; there is none", "WanImageToVideo"),
    "Wan22FunControlToVideo": ("needs a Wan 2.2 Fun control card; there is none", "WanImageToVideo"),
    "WanCameraImageToVideo": ("needs a Wan Fun camera card; there is none", "WanImageToVideo"),
    "WanCameraEmbedding": ("needs a Wan Fun camera card; there is none", ""),
    "WanSoundImageToVideo": ("needs a Wan S2V card; there is none", "WanImageToVideo"),
    "WanSoundImageToVideoExtend": ("needs a Wan S2V card; there is none", "WanImageToVideo"),
    "WanInfiniteTalkToVideo": ("needs an InfiniteTalk card; there is none", "WanImageToVideo"),
    "WanAnimateToVideo": ("needs a Wan Animate card; there is none", "WanImageToVideo"),
    "WanTrackToVideo": ("needs a Wan ATI card; there is none", "WanImageToVideo"),
    "WanMoveTrackToVideo": ("needs a Wan Move card; there is none", "WanImageToVideo"),
    "WanSCAILToVideo": ("needs a SCAIL card; there is none", "WanImageToVideo"),
    "VAEEncode": ("video to video: no installed card starts from given latents", "WanImageToVideo"),
    "SplitSigmas": ("a schedule in parts: write it as two KSamplerAdvanced", "KSamplerAdvanced"),
    "ManualSigmas": ("a schedule of free noise levels: the runtime's samplers make their own", "BasicScheduler"),
    "CFGZeroStar": ("patches guidance, which a card declares and a workflow cannot change", "CFGGuider"),
    "SkipLayerGuidanceDiT": ("runs the model without some layers as a third guidance branch, which no card has", ""),
    "SkipLayerGuidanceDiTSimple": ("runs the model without some layers as a guidance branch, which no card has", ""),
    "UNetTemporalAttentionMultiply": ("patches the model's attention, which no installed card declares", ""),
    "ContextWindowsManual": ("samples in overlapping windows of frames, which no loop of a card does", ""),
    "CheckpointLoaderSimple": (
        "an all-in-one checkpoint: no installed card has one",
        "UNETLoader, CLIPLoader, VAELoader",
    ),
    "SaveWEBM": ("its codec and quality settings have no counterpart here", "SaveVideo"),
    "SaveAnimatedWEBP": ("animated WebP is not among the formats that are written", "SaveVideo"),
    "GetImageSize": ("the size of a file is only known while it runs", "PrimitiveInt"),
    "WanAnimate2ToVideo": ("needs a Wan Animate card; there is none", "WanImageToVideo"),
    "WanAnimate2Cache": ("needs a Wan Animate card; there is none", ""),
    "WanDancerVideo": ("needs a Wan Dancer card; there is none", "WanImageToVideo"),
    "WanDancerEncodeAudio": ("needs a Wan Dancer card; there is none", ""),
    "WanMoveConcatTrack": ("needs a Wan Move card; there is none", ""),
    "WanMoveTracksFromCoords": ("needs a Wan Move card; there is none", ""),
    "GenerateTracks": ("needs a Wan Move card; there is none", ""),
    "ModelPatchLoader": ("patches the model with weights of another kind than adapters, which no card declares", ""),
    "CustomCombo": ("its choices are filled in by ComfyUI's window", "PrimitiveString"),
    "StartLoop": ("runs a part of the workflow several times", ""),
    "EndLoop": ("runs a part of the workflow several times", ""),
}
"""Types that are refused for a reason of their own, and what is nearest to them."""

_KNOWN = tuple(sorted({*COMPILED, *FOLDS, SWITCH}))
_SAVING = ("Save",)


def is_output(node_type: str, num_outputs: int | None) -> bool:
    """Whether a node is an end of the workflow: it saves something, or the file shows no outputs of it."""
    if node_type in INERT:
        return False
    return node_type.startswith(_SAVING) or num_outputs == 0


@lru_cache(maxsize=4096)
def refusal(node_type: str) -> tuple[str, str] | None:
    """Return why a type does not compile and the nearest supported form; None if it does."""
    if node_type in COMPILED or node_type in FOLDS or node_type == SWITCH:
        return None
    if node_type in _REASONS:
        return _REASONS[node_type]
    if node_type.endswith(("Api", "API")) or "ApiNode" in node_type:
        near = {"T": "EmptyHunyuanLatentVideo", "I": "WanImageToVideo"}.get("I" if "Image" in node_type else "T", "")
        return "a partner node: a remote service makes the result, not a model here", near
    near_types = get_close_matches(node_type, _KNOWN, n=1, cutoff=0.6)
    return "no rule for this node type", next(iter(near_types), "")
