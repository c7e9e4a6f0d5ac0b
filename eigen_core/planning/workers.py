"""The worker processes that a run starts on its own machine, and what each of them takes."""

from dataclasses import dataclass, replace
from typing import Literal

from eigen_core.config import Config
from eigen_core.devices import visible_gpus
from eigen_core.learners import learner_class
from eigen_core.memory import shares_memory
from eigen_core.planning import phases
from eigen_core.planning.scale import Scale
from eigen_core.threads import usable_cores

# Measured on Linux with glibc and torch 2.13 (CPU), without the parts of the run.
_PROCESS = 265_000_000


@dataclass(frozen=True)
class WorkerNeeds:
    """What one worker takes (bytes).

    Attributes:
        process: Python with its libraries.
        kept: the data that the run plays on.
        replay: its copy of the replay, on its device; 0: it reads that of the process that leads.
        agents: its share of the agents, once as they were sent and once as they are computed.
        evaluate, train: the most that the phases compute with.
    """

    process: int
    kept: int
    replay: int
    agents: int
    evaluate: int
    train: int


def local_worker_count(config: Config, device: Literal["cpu", "cuda"]) -> int:
    """Return how many worker processes a run starts on this machine, where its tensors live on `device`."""
    if config.workers != "auto":
        return config.workers
    if device == "cuda":
        gpus = len(visible_gpus())
        return min(gpus, config.population.size) if gpus > 1 else 0
    cores = usable_cores()
    return min(cores, config.population.size) if cores > 1 else 0


def most_on_one_gpu(count: int) -> int:
    """Return how many of so many workers of this machine share a GPU, at most; each has one of those there are."""
    return -(-count // max(len(visible_gpus()), 1))


def has_workers(config: Config, device: Literal["cpu", "cuda"]) -> bool:
    """Return whether workers compute the agents of a run, on this machine or on others."""
    return config.scheduler is not None or local_worker_count(config, device) > 0


def worker_needs(scale: Scale, count: int, device: Literal["cpu", "cuda"]) -> WorkerNeeds:
    """Return what the one of so many workers takes that has most agents, where tensors live on `device`."""
    share = _share_of(scale, count)
    kept = sum(part.tensor_bytes + part.host_bytes for part in scale.task.kept if not part.starting)
    agents = share.config.population.size * scale.learner.agent
    replay = 0 if shares_memory(device) else scale.rows_stored * scale.row_bytes
    return WorkerNeeds(_PROCESS, kept, replay, 2 * agents, phases.evaluate(share), phases.train(share) + agents)


def _share_of(scale: Scale, count: int) -> Scale:
    """Return the run as a worker with the most agents sees it."""
    size = -(-scale.config.population.size // count)
    population = scale.config.population.model_copy(update={"size": size})
    share = replace(
        scale,
        config=scale.config.model_copy(update={"population": population}),
        learning_agents=min(size, scale.learning_agents),
        rows_per_generation=scale.rows_per_generation * size // scale.config.population.size,
    )
    # Fewer agents than a group of the run learn at a time, where a worker has no more.
    needs = learner_class(scale.config.learner).needs
    return replace(share, learner=needs(share.config, scale.task, scale.rows_written, share.learning_group))
