"""The DeploymentCard: what an engine tells a fleet about itself."""

from fastvideo_fleet.card.deployment import (
    CacheEventSpec,
    ChunkCallSpec,
    DeploymentCard,
    HealthSchema,
    RolePoolSpec,
    SLOSchema,
    TransferEndpoint,
    deployment_card,
)

__all__ = [
    "CacheEventSpec",
    "ChunkCallSpec",
    "DeploymentCard",
    "HealthSchema",
    "RolePoolSpec",
    "SLOSchema",
    "TransferEndpoint",
    "deployment_card",
]
