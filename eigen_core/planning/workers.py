"""How many worker processes a run starts on its own machine."""

from typing import Literal

from eigen_core.config import Config
from eigen_core.machine.devices import visible_gpus
from eigen_core.machine.threads import usable_cores


def local_worker_count(config: Config, device: Literal["cpu", "cuda"]) -> int:
    """Return how many worker processes a run starts on this machine, where its tensors live on `device`."""
    if config.workers != "auto":
        return config.workers
    if device == "cuda":
        gpus = len(visible_gpus())
        return min(gpus, config.population.size) if gpus > 1 else 0
    cores = usable_cores()
    return min(cores, config.population.size) if cores > 1 else 0
