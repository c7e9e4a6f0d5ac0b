"""Records of generations that never were."""

from collections.abc import Sequence

from pydantic import JsonValue

from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import create_run, open_session
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.common.records import GenerationRecord, Lineage, Telemetry
from eigen_core.config import Config


def record(generation: int) -> GenerationRecord:
    return GenerationRecord(
        generation=generation,
        fitness=(1.0, 2.0),
        best_fitness=2.0,
        mean_fitness=1.5,
        validations=(0.5, 0.25),
        validation=0.5,
        champion_validation=0.5,
        champion_score=0.75,
        champion_generation=1,
        champion_agent=0,
        learning=None,
        trading={"trades": 1.0, "win_rate": 0.5, "idle_days": 3.0, "fees": 0.1},
        transitions=10 * generation,
        replay_capacity=100,
        noise_scale=0.1,
        evolution={"mutation_rate": 0.1, "mutation_std": 0.01},
        descent=(Lineage(agent=0, origin="elite", parents=(0,)), Lineage(agent=1, origin="elite", parents=(1,))),
        weights_sha256="a" * 64,
        replay_sha256="b" * 64,
    )


def telemetry(generation: int) -> Telemetry:
    return Telemetry(
        generation=generation,
        evaluate_seconds=1.0,
        train_seconds=2.0,
        evolve_seconds=0.5,
        rss_bytes=10**8,
        rss_peak_bytes=2 * 10**8,
    )


def snapshot_of_records(entries: Sequence[Telemetry]) -> Snapshot:
    """A checkpoint of a run with these measurements, whose records are those of `record`, and without tensors."""
    documents: dict[str, JsonValue | bytes] = {
        "history": [record(entry.generation).model_dump(mode="json") for entry in entries],
        "telemetry": [entry.model_dump(mode="json") for entry in entries],
    }
    return Snapshot(len(entries), {}, documents, 1)


def save_records(config: Config, name: str, entries: Sequence[Telemetry]) -> Manifest:
    """Save such a checkpoint of a run, which is made if it is missing."""
    location, values = RunLocation.of(config.checkpoint, name), config.model_dump(mode="json")
    if not location.exists():
        create_run(location, values)
    with open_session(location, config.checkpoint) as session:
        saved = session.save(snapshot_of_records(entries), values)
        session.finish()
    return saved.manifest
