"""Trials that were made, each a small JSON file, so that none is made again."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.learning.trial import run_trial, trial_config
from eigen_core.common.errors import InputError
from eigen_core.common.files import explained, replacing
from eigen_core.config import Config
from eigen_core.config.stored import stored_values
from eigen_core.judging.verdicts import Claim

_OF_NO_EFFECT = ("checkpoint", "reporting", "memory", "threads")
_FORMAT = 2
"""Raised when markets or judgement change: kept trials are then made again."""


class TrialFound(BaseModel):
    """What a trial found; see `run_trial`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    market: str
    edge: float
    seed: int
    share: dict[str, float | None]
    score: dict[str, float]
    excess: float | None
    oracle_excess: float | None = None
    claim: Claim | None
    cpu_s: float


@dataclass(frozen=True)
class Trial:
    """What a trial is of: a market, its edge, a method and a seed."""

    market: str
    edge: float
    method: str
    seed: int

    @property
    def config(self) -> Config:
        """Of the training.

        Raises:
            InputError: the settings cannot be used.
        """
        return trial_config(self.market, self.seed, self.method)

    def path(self, folder: Path) -> Path:
        """File of what it found; its name depends on all that determines it but the program's code."""
        values = {name: value for name, value in stored_values(self.config).items() if name not in _OF_NO_EFFECT}
        definition = json.dumps([_FORMAT, self.market, self.edge, values], sort_keys=True)
        digest = hashlib.sha256(definition.encode()).hexdigest()[:12]
        return folder / f"{self.market}-{self.edge:g}-{self.method}-{self.seed}-{digest}.json"

    def kept(self, folder: Path) -> TrialFound | None:
        """Return what it found; None if it was not made.

        Raises:
            InputError: the file cannot be read.
        """
        path = self.path(folder)
        with explained("read", path):
            if not path.exists():
                return None
            content = path.read_bytes()
        try:
            return TrialFound.model_validate_json(content)
        except ValidationError:
            raise InputError(f"{path} holds no trial: remove it, and the trial is made again.") from None

    def make(self, folder: Path) -> None:
        """Train, and keep what is found."""
        found = run_trial(self.market, self.edge, self.config) | {"method": self.method}
        folder.mkdir(parents=True, exist_ok=True)
        path = self.path(folder)
        with explained("write", path), replacing(path) as file:
            file.write((json.dumps(found) + "\n").encode())
