"""`eigen trust`: how often the verdict claims skill on noise (false alarms), and the edges that it finds (power).

A trial makes a synthetic market from the prices: noise, in which nothing can be predicted, or with a planted edge, a
feature that predicts returns. It trains a small run in memory and judges its champion on the holdout, as `eigen
backtest` does at the first look, and the baseline `ridge` by the same rule. A trial's result is kept as a small file,
so that the trial is not repeated.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from scipy.stats import binomtest

from eigen_core.common.errors import FOLLOWS, InputError, Next, end_of
from eigen_core.common.files import explained, open_regular_file, write_file
from eigen_core.common.records import Record
from eigen_core.common.text import count, percent
from eigen_core.config import Config
from eigen_core.config.registry import has_prices
from eigen_core.config.stored import config_from_stored, stored_values
from eigen_core.generation import evaluate, evolve, start_training, train
from eigen_core.generation.state import resolve_device
from eigen_core.judging.backtest import backtest_class
from eigen_core.judging.significance import POWER, SIGNIFICANCE
from eigen_core.judging.statistics import CONFIDENCE
from eigen_core.judging.verdicts import Claim, verdict_on
from eigen_core.machine.performance import computing_threads
from eigen_core.market import Panel
from eigen_core.market.build import panel_of_clean_prices, read_prices
from eigen_core.market.cleaning import prices_fingerprint
from eigen_core.market.panel import Splits
from eigen_core.trading.synthetic import require_choice, unpredictable_prices, with_planted_edge

TRIAL_PRESET = "quickstart"
"""Default preset of trials: in the same training time it finds more of a weak edge than the other presets."""
TRIAL_SETTINGS: Mapping[str, Any] = {"market.holdout": 1_250}
"""Default settings of trials: on one year of days a weak edge cannot be distinguished from luck."""
_DRAWS = 400
_OF_NO_EFFECT = ("checkpoint", "reporting", "memory", "cuda_graphs", "threads", "workers", "scheduler")
_DEFINITION = "definition.json"
_MOST_BYTES = 1 << 20
_ANOTHER_FOLDER = "give another folder with --out"


class Trial(Record):
    """The verdict (`Verdict`) on the champion of a small run that was trained on a synthetic market."""

    edge: float | None
    """Information coefficient (mean correlation with returns) of the planted feature; None: the market is noise."""
    seed: int
    """Seed of the run and of the synthetic market."""
    claim: Claim | Literal["diverged"]
    """The verdict's claim; diverged: a number of its training was not finite, so that there is no verdict."""
    excess: float | None
    """Mean excess over the market (%), per trade or per year."""
    matched_pvalue: float
    excess_pvalue: float | None
    trades: int
    ridge: Claim | None = None
    """The verdict's claim for the baseline `ridge`; None if an earlier version made the trial, or training diverged."""


@dataclass(frozen=True)
class Claims:
    """Number of trials, at least one, on noise or with the same edge; `claimed`: how many of them claimed skill."""

    trials: int
    claimed: int

    @property
    def share(self) -> float:
        return self.claimed / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share (Clopper and Pearson 1934)."""
        interval = binomtest(self.claimed, self.trials).proportion_ci(CONFIDENCE, method="exact")
        return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class Trust:
    """Result of all trials: `false_alarms` on noise; `power`, by the information coefficient of planted edges.

    Trials that `diverged` are trials without a claim. `ridge`: claims for the baseline `ridge`, by edge, or None for
    noise, where there are trials with one.
    """

    false_alarms: Claims
    power: Mapping[float, Claims]
    diverged: int = 0
    ridge: Mapping[float | None, Claims] = field(default_factory=dict)

    @property
    def smallest_edge(self) -> float | None:
        """The smallest edge that, like all greater ones, was found in 80 % of its trials; None: no edge was."""
        smallest = None
        for edge, claims in sorted(self.power.items(), reverse=True):
            if claims.share < POWER:
                break
            smallest = edge
        return smallest

    @property
    def sentences(self) -> tuple[str, ...]:
        alarms, tried = self.false_alarms, ", ".join(f"{edge:g}" for edge in self.power)
        low, high = alarms.interval
        first = (
            f"False alarms: skill was claimed on {alarms.claimed} of {alarms.trials} markets in which nothing can be "
            f"predicted ({percent(CONFIDENCE, 0)} interval {percent(low, 0)} to {percent(high, 0)}; the rule allows "
            f"{percent(SIGNIFICANCE, 0)})."
        )
        found = "none of those tried" if self.smallest_edge is None else f"{self.smallest_edge:g}"
        power = (
            f"Power: the smallest edge found in {percent(POWER, 0)} of the trials is {found} (information coefficients "
            f"tried: {tried or 'none'})."
        )
        diverged = f"{count(self.diverged, 'trial')} diverged in training, and so claimed nothing."
        return (first, power, diverged) if self.diverged else (first, power)


class TrustTrials:
    """The trials of a configuration on markets made from its prices; their results are kept in a folder.

    Their seeds are consecutive, from `config.seed` on.

    Raises:
        InputError: the prices cannot be used, the configuration's task has none, or it has no holdout days.
    """

    def __init__(self, config: Config, folder: Path) -> None:
        if not has_prices(config.task) or not config.market.holdout:
            raise InputError("Trials need a market with holdout days: set neither task nor market.holdout.")
        self._config, self._folder = config, folder
        self._prices = read_prices(config)
        Splits.of(self._prices.days, config.market).require(config)

    def run(
        self,
        trials: int,
        edges: Sequence[float],
        started: Callable[[int, int], None] = lambda *_: None,
        finished: Callable[[Trial, int, int], None] = lambda *_: None,
    ) -> Trust:
        """Run the trials whose results are not in the folder, and return the result of all.

        There are `trials` (at least one) on noise, and as many for each edge, an information coefficient. `started` and
        `finished` are called before and after each new trial, with its number and the total number.

        Raises:
            InputError: the folder holds trials of other settings or prices, or there are too few symbols for an edge.
        """
        edges = sorted(set(edges))
        if edges:
            require_choice(self._prices.assets)
        self._require_same_definition()
        seeds = range(self._config.seed, self._config.seed + trials)
        wanted = [(edge, seed, self._path(edge, seed)) for seed in seeds for edge in (None, *edges)]
        kept = {path: _read(path) for *_, path in wanted}
        found = [trial for trial in kept.values() if trial is not None]
        for edge, seed, path in wanted:
            if kept[path] is not None:
                continue
            number = len(found) + 1
            started(number, len(wanted))
            try:
                with computing_threads(self._config.threads):
                    trial = self._run_trial(edge, seed)
            except Exception as error:
                if FOLLOWS[end := end_of(error)]["trust"] is not Next.RECORD:
                    raise
                nothing = {"excess": None, "matched_pvalue": 1.0, "excess_pvalue": None, "trades": 0}
                trial = Trial.model_validate({"edge": edge, "seed": seed, "claim": str(end), **nothing})
            _write(path, trial.model_dump(mode="json"))
            finished(trial, number, len(wanted))
            found.append(trial)

        def claims(edge: float | None, of: str = "claim") -> Claims:
            made = [getattr(trial, of) for trial in found if trial.edge == edge and getattr(trial, of) is not None]
            return Claims(len(made), made.count("skill"))

        diverged = sum(trial.claim == "diverged" for trial in found)
        ridge = {edge: made for edge in (None, *edges) if (made := claims(edge, "ridge")).trials}
        return Trust(claims(None), {edge: claims(edge) for edge in edges}, diverged, ridge)

    def _path(self, edge: float | None, seed: int) -> Path:
        return self._folder / f"{'noise' if edge is None else f'edge-{edge:g}'}-{seed}.json"

    def _run_trial(self, edge: float | None, seed: int) -> Trial:
        config = self._config.model_copy(update={"seed": seed})
        panel = self._noise(seed) if edge is None else with_planted_edge(self._panel, config.trading, edge, seed)
        state = start_training(config, panel)
        for _ in range(config.generations):
            evaluate(state)
            train(state)
            evolve(state)
        assert state.champion is not None
        market = backtest_class(config)(config, panel, resolve_device(config.device))
        played = market.play(state.champion.weights[None], panel.splits.holdout, "champion", draws=_DRAWS)
        verdict = verdict_on(played, config)
        ridge = verdict_on(market.play_ridge(panel.splits.holdout, draws=_DRAWS), config)
        return Trial(
            edge=edge,
            seed=seed,
            claim=verdict.claim,
            excess=None if played.excess is None else played.excess.mean,
            matched_pvalue=verdict.matched_pvalue,
            excess_pvalue=verdict.excess_pvalue,
            trades=len(played.trades),
            ridge=ridge.claim,
        )

    @cached_property
    def _panel(self) -> Panel:
        return panel_of_clean_prices(self._prices, self._config.market, prices_fingerprint(self._prices))

    def _noise(self, seed: int) -> Panel:
        prices = unpredictable_prices(self._prices, seed)
        return panel_of_clean_prices(prices, self._config.market, prices_fingerprint(prices))

    def _require_same_definition(self) -> None:
        market = self._config.market.model_copy(update={"data": None})
        settings = _settings_of_effect(self._config.model_copy(update={"market": market}))
        definition = {"config": settings, "prices": prices_fingerprint(self._prices), "draws": _DRAWS}
        path = self._folder / _DEFINITION
        with explained("read the trials in", self._folder, _ANOTHER_FOLDER):
            known = _content_of(path) if path.exists() else None
        if known is None:
            _write(path, definition)
        elif _definition_in(known) != definition:
            raise InputError(
                f"The trials in {self._folder} were made with other settings or prices: give the same command, or "
                "another folder with --out."
            )


def with_trial_settings(given: Sequence[str]) -> list[str]:
    """Return the settings of `given` (`key=value`), then those of `TRIAL_SETTINGS` whose keys it does not set."""
    keys = {assignment.partition("=")[0].strip() for assignment in given}
    return [*given, *(f"{key}={json.dumps(value)}" for key, value in TRIAL_SETTINGS.items() if key not in keys)]


def trust_document(trust: Trust) -> dict[str, Any]:

    def document(claims: Claims) -> dict[str, Any]:
        return {**asdict(claims), "share": claims.share, "interval": claims.interval}

    return {
        "false_alarms": document(trust.false_alarms),
        "power": [{"edge": edge, **document(claims)} for edge, claims in trust.power.items()],
        "ridge": [{"edge": edge, **document(claims)} for edge, claims in trust.ridge.items()],
        "smallest_edge": trust.smallest_edge,
        "sentences": list(trust.sentences),
    }


def _settings_of_effect(config: Config) -> dict[str, Any]:
    return {name: value for name, value in stored_values(config).items() if name not in _OF_NO_EFFECT}


def _definition_in(content: bytes) -> dict[str, Any] | None:
    """Return the definition in `content`, with the current names of settings; None if it is not one."""
    try:
        document = json.loads(content)
        config = config_from_stored(document["config"])
    except (ValueError, TypeError, KeyError, AttributeError, InputError):
        return None
    return {"config": _settings_of_effect(config), "prices": document.get("prices"), "draws": document.get("draws")}


def _read(path: Path) -> Trial | None:
    with explained("read", path, _ANOTHER_FOLDER):
        if not path.exists():
            return None
        content = _content_of(path)
    try:
        return Trial.model_validate_json(content)
    except ValidationError:
        raise InputError(f"{path} holds no trial: remove it to repeat the trial.") from None


def _content_of(path: Path) -> bytes:
    with open_regular_file(path, follow=False) as file:
        return file.read(_MOST_BYTES)


def _write(path: Path, document: object) -> None:
    write_file(path, (json.dumps(document, indent=2) + "\n").encode(), _ANOTHER_FOLDER)
