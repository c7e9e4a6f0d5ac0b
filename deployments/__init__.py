"""How Eigen runs in production: deployments, services, the container image. Files, no code."""
