"""The deploy config: one YAML file that says which plugins are on, and how a machine runs which cards."""

from fastvideo_core.deploy.config import DeployConfig
from fastvideo_core.deploy.deployment import Deployment, deploy
from fastvideo_core.deploy.resolve import Layer, Origin, ResolvedConfig, resolve_config

__all__ = ["DeployConfig", "Deployment", "Layer", "Origin", "ResolvedConfig", "deploy", "resolve_config"]
