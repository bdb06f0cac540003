"""The DeploymentCard: what an engine tells a fleet about itself."""
