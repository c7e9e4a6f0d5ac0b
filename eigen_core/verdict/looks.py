"""Looks at the days of a market, as the ledger counts them."""

from collections.abc import Sequence

import torch

from eigen_core.checkpoint.checksums import json_sha256, tensors_sha256
from eigen_core.config import Config
from eigen_core.store import Store
from eigen_core.verdict.ledger import Look, record_look


def keep_look(
    store: Store,
    run: str,
    config: Config,
    days: tuple[str, str, Sequence[str]],
    weights: torch.Tensor,
    *,
    one_portfolio: bool = False,
    sharpe: float | None = None,
) -> None:
    """Keep a look at a span of days in the ledger.

    Args:
        store: of the run.
        run: its name.
        config: the run's, with the account's settings.
        days: first and last day (YYYY-MM-DD), and the symbols traded.
        weights: of the agents, float32 `[agents, parameters]`.
        one_portfolio: the agents traded one portfolio.
        sharpe: Sharpe ratio of a day; None: not known yet.

    Raises:
        InputError, StoreUnavailableError: see `Store`.
    """
    first, last, symbols = days
    rules = {"trading": config.trading.model_dump(mode="json"), "account": config.account.model_dump(mode="json")}
    look = Look(
        first=first,
        last=last,
        symbols=tuple(symbols),
        agent=tensors_sha256({"weights": weights.cpu()}),
        settings=json_sha256({**rules, "one_portfolio": one_portfolio}),
        run=run,
        sharpe=sharpe,
    )
    record_look(store, look)
