"""Writes a small finished run, to be kept as a file of the tests: `python tests/support/old_run.py FOLDER NAME`.

What it wrote in one version of Eigen has to be readable in all later ones.
"""

import sys
from pathlib import Path

from record_cases import telemetry

from eigen_core.checkpoint.location import RunLocation
from eigen_core.checkpoint.session import create_run, open_session
from eigen_core.config import Config
from eigen_core.generation import evaluate, evolve, record_telemetry, snapshot, start_training, train
from eigen_core.market import build_panel


def write_run(folder: Path, name: str) -> None:
    """Train two agents for one generation of two days on the bundled prices."""
    config = Config.model_validate(
        {
            "generations": 1,
            "device": "cpu",
            "market": {"window": 2, "validation_days": 4, "holdout_days": 0},
            "trading": {"trading_days": 2, "settlement_days": 2, "holding_days": 2},
            "network": {"scales": [1], "channels": 2, "embedding": 2, "queries": 1, "head_width": 2},
            "population": {"size": 2},
            "replay": {"capacity": 100, "minimum": 4},
            "learner": {"gradient_steps": 1, "batch_size": 2},
            "evaluation": {"slices": 1, "lowest": 1, "validation_slices": 1, "validation_lowest": 1},
            "checkpoint": {"store": str(folder)},
        }
    )
    panel, _ = build_panel(config)
    state = start_training(config, panel)
    evaluate(state)
    train(state)
    evolve(state)
    record_telemetry(state, telemetry(1))
    create_run(RunLocation.of(config.checkpoint, name), config.model_dump(mode="json"))
    with open_session(config.checkpoint, name) as session:
        session.save(snapshot(state), config.model_dump(mode="json"))


if __name__ == "__main__":
    write_run(Path(sys.argv[1]), sys.argv[2])
