"""Small runs on a market that were trained for a generation, in a store."""

from pathlib import Path
from typing import Any

from flow_cases import small_flow_config

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import open_session
from eigen_core.config import Config
from eigen_core.config.stored import stored_values
from eigen_core.generation import evaluate, evolve, hold_out, snapshot, start_training, train
from eigen_core.market import build_panel
from eigen_core.runs.handle import Run

RUN = "small"


def trained(store: Path, run: str = RUN, *, of: int, **sections: Any) -> Config:
    market = {"holdout": 60, **sections.pop("market", {})}
    return trained_as(run, small_flow_config(store, generations=of, market=market, **sections))


def trained_as(run: str, config: Config) -> Config:
    state = start_training(config, build_panel(config)[0])
    for phase in (evaluate, train, evolve):
        phase(state)
    Run(config.checkpoint, run).begin(config)
    with open_session(RunLocation.of(config.checkpoint, run), config.checkpoint) as session:
        session.save(snapshot(state), stored_values(config))
        if config.generations == 1 and (result := hold_out(state)) is not None:
            session.keep_holdout(1, result.model_dump(mode="json"))
    return config
