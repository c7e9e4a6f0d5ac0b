"""Running Eigen for days: server, worker, deployments, automations, and what they are doing."""
