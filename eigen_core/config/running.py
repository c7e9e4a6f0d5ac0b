"""How a run is kept, watched and shown."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from eigen_core.config.choices import TrackerName
from eigen_core.config.values import (
    Count,
    CountOrZero,
    NonNegative,
    Positive,
    Section,
    Text,
)


class CheckpointConfig(Section):
    """Where generations are kept, and which."""

    store: Text = "runs"
    """Where runs are kept: a folder, or a URL such as gs://bucket/prefix."""
    keep_last: Count = 3
    """Newest generations kept."""
    keep_every: CountOrZero = 5
    """Every so many generations one is kept for good; 0: none."""
    local: Text = "runs"
    """Folder on this machine for what is being uploaded to a store elsewhere."""
    keep_local: Count = 2
    """Newest generations that also stay on this machine when the store is elsewhere."""
    queue_generations: Count = 8
    """Generations that may wait for upload; training waits when more would."""
    queue_mb: Positive = 8_192.0
    """Most that may wait for upload (MB)."""
    upload_mb_per_second: NonNegative = 50.0
    """Rate that uploads keep below, so that they take no time from training (MB/s); 0: no limit."""
    finish_seconds: Annotated[float, Field(gt=0.0, le=1e6)] = 900.0
    """How long a run's end waits for the last upload (seconds)."""
    lease_seconds: Annotated[float, Field(ge=10, le=1e6)] = 90.0
    """Time after which a run whose process does not renew its lease may be taken over by another machine (seconds)."""


class MemoryConfig(Section):
    """How much memory a run may take, and when it stops by itself."""

    limit_gb: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    """Most that the run may take on the host, if less than the machine allows (GB); null: no limit of its own."""
    soft: Annotated[float, Field(gt=0, lt=1)] = 0.85
    """Share of the limit at which caches are freed and a warning is written."""
    hard: Annotated[float, Field(gt=0, lt=1)] = 0.93
    """Share of the limit at which the phase under way is aborted; the last checkpoint stays good."""
    sample_seconds: Annotated[float, Field(ge=0.001, le=60)] = 0.2
    """Time between two measurements of the memory (seconds)."""
    trace: bool = False
    """Record where Python allocates, for the report of a guard that aborted; costs time and memory."""

    @model_validator(mode="after")
    def _soft_comes_first(self) -> Self:
        if self.soft >= self.hard:
            raise ValueError(f"memory.soft {self.soft} is not below memory.hard {self.hard}: nothing would warn")
        return self


class ReportingConfig(Section):
    """What is shown, and how often."""

    plot_every: CountOrZero = 5
    """Generations between two pages of plots; the last generation always has one. 0: only the last."""
    trackers: Annotated[tuple[TrackerName, ...], Field(max_length=100, strict=False)] = ()
    """Experiment trackers that also receive the metrics of each generation after its checkpoint; each needs the extra
    of its name, for example `pip install 'eigen-trader[tensorboard]'`."""
    tensorboard_folder: Text | None = None
    """Folder in which each run has a folder of event files for TensorBoard. Empty: `tensorboard` in the run's own."""
    mlflow_uri: Text | None = None
    """MLflow's server or database, for example `http://host:5000`. Empty: MLFLOW_TRACKING_URI if it is set, else
    `mlflow.db` beside the runs on this machine."""
    mlflow_experiment: Text = "eigen"
    """Experiment in MLflow that holds the runs; it is made if it is missing."""
