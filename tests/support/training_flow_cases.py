"""Trainings as flows of the test process."""

from typing import Any

from prefect import State

from eigen_core.common.records import GenerationRecord
from eigen_core.config import Config
from eigen_core.training.runs import status_of
from flows.server.flows import train_flow


def train(config: Config, name: str = "run") -> State[Any]:
    return train_flow(config, name, return_state=True)


def records(config: Config, name: str = "run") -> tuple[GenerationRecord, ...]:
    return status_of(config.checkpoint.store, name).history
