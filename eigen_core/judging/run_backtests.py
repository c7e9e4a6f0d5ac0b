"""Backtests of runs: what their agents earn in money over a span of days, and a verdict on whether they show skill."""

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from eigen_core.checkpoint.export import CHAMPION, stored_weights
from eigen_core.checkpoint.manifest import Manifest
from eigen_core.checkpoint.run_contents import RunContents
from eigen_core.checkpoint.store_location import open_store
from eigen_core.common.errors import InputError
from eigen_core.common.files import write_file
from eigen_core.common.records import parse_history
from eigen_core.common.text import count, quoted
from eigen_core.config import Config
from eigen_core.config.loading import changed, differing_keys, parse_assignments
from eigen_core.config.registry import has_prices
from eigen_core.generation.state import resolve_device, same_prices
from eigen_core.judging.backtest import SpanResult, backtest_class
from eigen_core.judging.statistics import sharpe_ratio
from eigen_core.judging.verdicts import Verdict, draws_for, judge_of
from eigen_core.machine.performance import computing_threads
from eigen_core.market import Panel, build_panel
from eigen_core.market.formats import dates_of
from eigen_core.runs.evaluation_log import Looks, keep_look, looks_at
from eigen_core.runs.handle import Run, RunStatus, is_changeable
from eigen_core.trading.equity import daily_rates, share_of
from eigen_core.trading.metrics import drawdowns

logger = logging.getLogger(__name__)

_DATES = re.compile(r"(\d{4}-\d{2}-\d{2}):(\d{4}-\d{2}-\d{2})")
_SURVIVORS = ("elite", "champion")
_FEWEST_DAYS = 2
_CHOSEN = "The champion was chosen on these days: its earnings on them are the best of many validations."


@dataclass(frozen=True, kw_only=True)
class Backtest(SpanResult):
    """A `SpanResult` of agents of a run, with its verdict.

    Attributes:
        agent, span: which agents, on which days; see `backtest`.
        agents, generation: number of these agents, and the run's newest generation.
        config: of the run, with the account settings of this backtest.
        looks: all results on these days in the evaluation log, and on other days of their holdout, with this one.
        verdict: counts these looks; on validation days, also the validations by which the agents were chosen.
        folder: local folder for its tables (`write_backtest`).
    """

    run: str
    agent: str
    agents: int
    generation: int
    span: str
    config: Config
    looks: Looks
    verdict: Verdict
    folder: Path

    @property
    def warnings(self) -> tuple[str, ...]:
        return (*([_CHOSEN] if self.span == "validation" else []), *self.looks.warnings)


def backtest(
    store: str,
    run: str,
    *,
    span: str | None = None,
    agent: str = "champion",
    settings: Iterable[str] = (),
    draws: int | None = None,
) -> Backtest:
    """Let agents of a run trade a span of days with an account in money, and add the result to the evaluation log.

    Args:
        span: `holdout`, `validation`, or two dates, FIRST:LAST; None: the holdout of a finished run.
        agent: `champion`; the number of an agent of the newest generation; `elites` or `population`, each agent with an
            equal share of the capital; `ensemble`, which trades one portfolio by the means of the elites' actions.
        settings: settings of the section `account` that replace the run's, as account.KEY=VALUE.
        draws: number of random traders with which the agents are compared (`SpanResult.matched`); None: as `draws_for`
            returns for the looks so far.

    Raises:
        InputError: there is no such run, agent or span, the run's task has no prices, or the prices are not those that
            the run was trained on.
        StoreUnavailableError: the store does not answer.
    """
    return play(store, run, span=span, agent=agent, settings=settings, draws=draws)[1]()


def play(
    store: str, run: str, *, span: str | None, agent: str, settings: Iterable[str] = (), draws: int | None = None
) -> tuple[SpanResult, Callable[[], Backtest]]:
    """Return what agents earn, and a function that adds this to the evaluation log and judges it; see `backtest`."""
    opened = Run.open(store, run)
    status, config = opened.status(), config_to_judge(opened, settings)
    span = _default_span(status) if span is None else span
    weights, generation, panel = agents_on_market(opened, config, agent)
    days = days_of(panel, config, span)
    symbols, where = panel.symbols[: panel.assets], open_store(store)
    # Whoever looks at parts of a holdout can choose among them, so looks at any of its days count.
    holdout = panel.splits.holdout
    of_family = {*days, *holdout} if set(days) & set(holdout) else days
    family = [str(day) for day in dates_of(panel.dates[[min(of_family), max(of_family)]])]
    # Validations among which the agents were chosen on these days count as looks.
    choices = generation * config.population.size if set(days) & set(panel.splits.validation) else 0
    if draws is None:
        known = looks_at(where, symbols, *family).count
        draws = draws_for(known + 1 + choices, 1 if agent == "ensemble" else len(weights))
    with computing_threads(config.threads):
        market = backtest_class(config)(config, panel, resolve_device(config.device))
        require_shape(weights, (len(weights), market.parameters), run)
        played = market.play(weights, days, agent, ensemble=agent == "ensemble", draws=draws)
    training_days = len(set(days) & set(panel.splits.training_bars.tolist()))
    folder = status.folder / "backtests" / f"{agent}-{panel.dates[days[0]]}-{panel.dates[days[-1]]}"

    def judged() -> Backtest:
        curve, judge = played.curve, judge_of(played, config)
        first, last = str(curve.dates[0]), str(curve.dates[-1])
        sharpe = sharpe_ratio(curve.returns - daily_rates(played.risk_free, curve.dates))
        one = played.one_portfolio
        keep_look(where, run, config, (first, last, symbols), weights, one_portfolio=one, sharpe=sharpe)
        looks = looks_at(where, symbols, *family)
        for warning in looks.warnings:
            logger.warning("%s: %s", where.url, warning)
        verdict = judge(looks.count + choices, looks.sharpes)
        if training_days:
            sentence = f"no skill shown: the agents were trained on {training_days:,} of these days."
            verdict = replace(verdict, claim="none", sentence=sentence)
        return Backtest(
            **{each.name: getattr(played, each.name) for each in fields(played)},
            run=run,
            agent=agent,
            agents=len(weights),
            generation=generation,
            span=span,
            config=config,
            looks=looks,
            verdict=verdict,
            folder=folder,
        )

    return played, judged


def agents_on_market(run: Run, config: Config, agent: str) -> tuple[torch.Tensor, int, Panel]:
    """Return weights of agents of a run, float32 `[agents, parameters]`, its newest generation, and its panel.

    `agent` and the errors are those of `backtest`.
    """
    contents, manifest = newest_of_run(run)
    weights = _weights_of(contents, manifest, agent, config.population.size)
    return weights, manifest.generation, _panel_of(contents, manifest, config)


def require_shape(weights: torch.Tensor, expected: tuple[int, ...], run: str) -> None:
    """Raise `InputError` if the weights of agents of a run do not have the `expected` shape."""
    if tuple(weights.shape) != expected:
        raise InputError(
            f"The tensor 'weights' of agents of run '{run}' has the shape {list(weights.shape)}, and their networks "
            f"need {list(expected)}: somebody has changed the run. Restore it from a copy, or train a new one."
        )


def config_to_judge(
    run: Run, settings: Iterable[str] = (), data: str | None = None, sections: tuple[str, ...] = ("account.", "market.")
) -> Config:
    """Return the configuration with which this machine judges agents of a run (see `Run.config_to_resume`).

    `settings` are changeable settings `key=value` of the `sections`. `InputError` if the run's task has no prices.
    """
    if not has_prices(run.config.task):
        raise InputError(
            f"Run '{run.name}' plays {quoted(run.config.task)}, which has no prices: name a run with task market or "
            "portfolio."
        )
    config = run.config_to_resume(data)
    judged = changed(config, parse_assignments(settings))
    for key in differing_keys(config, judged):
        if not key.startswith(sections) or not is_changeable(key):
            raise InputError(
                f"{key} is fixed by the run: leave it out. Here only changeable settings under "
                f"{' and '.join(section.rstrip('.') for section in sections)} can be given."
            )
    return judged


def _default_span(status: RunStatus) -> str:
    if not status.config.market.holdout:
        raise InputError(f"Run '{status.run}' has no holdout days: choose other days, such as --slice validation.")
    if status.generation < status.config.generations:
        raise InputError(
            f"Run '{status.run}' has {status.generation} of {status.config.generations} generations. If you choose "
            "by results on the holdout, it no longer tests your choice: give --slice validation until the run is "
            "finished, or --slice holdout to use it now."
        )
    return "holdout"


def newest_of_run(run: Run) -> tuple[RunContents, Manifest]:
    """Return contents and manifest (list of files) of a run's newest generation; `InputError`: there is none."""
    if run.newest is None:
        raise InputError(f"Run '{run.name}' has no agents yet: wait until it has completed a generation.")
    return run.newest


def _weights_of(contents: RunContents, manifest: Manifest, agent: str, size: int) -> torch.Tensor:
    if agent == "champion":
        return stored_weights(contents, manifest, CHAMPION).unsqueeze(0)
    population = stored_weights(contents, manifest, "population")
    require_shape(population, (size, *population.shape[1:]), contents.name)
    if agent == "population":
        return population
    if agent in ("elites", "ensemble"):
        history = parse_history(contents.document(manifest, "history"), manifest.generation)
        elites = [descent.agent for descent in history[-1].descent if descent.origin in _SURVIVORS]
        if elites:
            return population[elites]
        raise InputError(
            f"No agent of run '{contents.name}' has survived generation {manifest.generation} as an elite: give "
            "--agent champion, population or an agent's number."
        )
    if not agent.isdecimal() or int(agent) >= len(population):
        raise InputError(
            f"There is no agent '{agent}': choose champion, elites, population, ensemble, or a number from 0 to "
            f"{len(population) - 1}."
        )
    return population[int(agent)].unsqueeze(0)


def _panel_of(contents: RunContents, manifest: Manifest, config: Config) -> Panel:
    panel, _ = build_panel(config)
    description = contents.document(manifest, CHAMPION)
    trained_on = description.get("panel") if isinstance(description, dict) else None
    origin = description.get("origin") if isinstance(description, dict) else None
    if trained_on != panel.fingerprint and not (isinstance(origin, dict) and same_prices(panel.origin, origin)):
        raise InputError(
            f"Run '{contents.name}' was trained on other data (hash {str(trained_on)[:12]}) than those here (hash "
            f"{panel.fingerprint[:12]}). Set the environment variable EIGEN_DATA to the path of its training data."
        )
    return panel


def days_of(panel: Panel, config: Config, span: str) -> range:
    """Return the days of a panel that a span names: `holdout`, `validation`, or two dates, FIRST:LAST.

    Raises:
        InputError: the span is invalid, has fewer than two days, or begins before agents can observe a whole window.
    """
    if span in ("holdout", "validation"):
        days: range = getattr(panel.splits, span)
    else:
        days = _days_between(panel, span)
    earliest = config.market.window - 1
    if len(days) < _FEWEST_DAYS:
        raise InputError(
            f"The span {span} holds {count(len(days), 'day')} of prices: an account needs {_FEWEST_DAYS} or more."
        )
    if days[0] < earliest:
        raise InputError(
            f"The span {span} begins after fewer days of prices than the {config.market.window} that agents observe: "
            f"begin on {panel.dates[earliest]} or later."
        )
    return days


def _days_between(panel: Panel, span: str) -> range:
    found = _DATES.fullmatch(span)
    try:
        first, last = (np.datetime64(date, "D") for date in found.groups()) if found else (None, None)
    except ValueError:
        first, last = None, None
    if first is None or last is None:
        raise InputError(f"'{span}' is no span: write holdout, validation, or dates such as 2021-01-01:2021-12-31.")
    if first > last:
        raise InputError(f"'{span}' ends before it begins: swap the dates.")
    dates = dates_of(panel.dates)
    start, stop = np.searchsorted(dates, first), np.searchsorted(dates, last, side="right")
    return range(int(start), int(stop))


def write_backtest(backtest: Backtest, folder: Path) -> None:
    write_table(equity_table(backtest), folder / "equity")
    write_table(backtest.trades, folder / "trades")
    write_table(backtest.by_asset, folder / "by_asset")


def equity_table(backtest: Backtest) -> pd.DataFrame:
    """Return the account of the agents, a row a day, beside the equity of the baselines, a column each.

    Columns: date, equity, return, drawdown (fractions), exposure (share of the equity), traded (money), turnover
    (traded value as a share of the equity), costs (money); then the names of the baselines (money).
    """
    curve = backtest.curve
    return pd.DataFrame(
        {
            "date": curve.dates.astype("datetime64[s]"),
            "equity": curve.equity,
            "return": curve.returns,
            "drawdown": drawdowns(curve),
            "exposure": curve.exposure,
            "traded": curve.traded,
            "turnover": share_of(curve.traded, curve.equity),
            "costs": curve.costs,
            **{name: np.asarray(baseline.equity) for name, baseline in backtest.baselines.items()},
        }
    )


def write_table(table: pd.DataFrame, stem: Path) -> None:
    """Write a table as `stem`.csv and `stem`.parquet; raise `InputError` if the files cannot be written."""
    contents = {".csv": table.to_csv(index=False).encode(), ".parquet": table.to_parquet(index=False)}
    for suffix, content in contents.items():
        write_file(stem.with_suffix(suffix), content)
