"""The model plane: typed contracts of a deployable video model. Imports neither torch nor a runtime."""

from fastvideo_core.card.base import Contract, Identifier, ObjectRef, resolve_ref
from fastvideo_core.card.caches import CacheContract, CachePolicy
from fastvideo_core.card.capabilities import CapabilityMatrix, InputSpec, TaskSpec
from fastvideo_core.card.card import ModelCard
from fastvideo_core.card.checkpoint import CheckpointManifest, CheckpointSource, ComponentFiles
from fastvideo_core.card.components import ComponentSpec, PlacementPolicy
from fastvideo_core.card.loops import GraphCapturePolicy, LoopSpec
from fastvideo_core.card.parallelism import ParallelConstraint, ParallelismContract, ParallelPlanPattern
from fastvideo_core.card.parameters import ParameterSpec
from fastvideo_core.card.parity import ParityLevel, ParitySpec, ParityTestSpec
from fastvideo_core.card.precision import PrecisionContract, PrecisionPolicy
from fastvideo_core.card.recipe import DataRef, RecipeSpec
from fastvideo_core.card.refs import foreign_refs, object_refs

__all__ = [
    "CacheContract",
    "CachePolicy",
    "CapabilityMatrix",
    "CheckpointManifest",
    "CheckpointSource",
    "ComponentFiles",
    "ComponentSpec",
    "Contract",
    "DataRef",
    "GraphCapturePolicy",
    "Identifier",
    "InputSpec",
    "LoopSpec",
    "ModelCard",
    "ObjectRef",
    "ParallelConstraint",
    "ParallelPlanPattern",
    "ParallelismContract",
    "ParameterSpec",
    "ParityLevel",
    "ParitySpec",
    "ParityTestSpec",
    "PlacementPolicy",
    "PrecisionContract",
    "PrecisionPolicy",
    "RecipeSpec",
    "TaskSpec",
    "foreign_refs",
    "object_refs",
    "resolve_ref",
]
