"""Trading day after day over a span, with the portfolio carried from the first day to the last."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from eigen_core.account.trades import DecidedTrades
from eigen_core.config import TradingConfig
from eigen_core.trading import Prices, TradingEnvironment
from eigen_core.trading.prices import CLAIMS

Decide = Callable[[int, Tensor], tuple[Tensor, ...]]
"""From a day of the span and portfolios `[traders, assets, 4]` to the arguments of `TradingEnvironment.step`."""


def prices_of_span(prices: Prices, span: range, days_after: int) -> Prices:
    """Return the prices of a span as they are known at its end: `days_after` days without any price follow.

    The last known close goes on over these days, so that what is still held is worth it; they count as sessions.
    """
    rows = slice(span.start, span.stop)

    def padded(values: Tensor, after: Tensor | float | bool) -> Tensor:
        later = torch.empty((days_after, prices.assets), dtype=values.dtype, device=values.device)
        later[:] = after
        return torch.cat([values[rows], later])

    return replace(
        prices,
        open=padded(prices.open, torch.nan),
        high=padded(prices.high, torch.nan),
        close=padded(prices.close, torch.nan),
        last_close=padded(prices.last_close, prices.last_close[span.stop - 1]),
        tradable=padded(prices.tradable, False),
        missing=padded(prices.missing, True),
        precedence=padded(prices.precedence, -CLAIMS),
        session=padded(prices.session, True),
        last_day=torch.full((len(span) + days_after,), len(span) - 1, device=prices.close.device),
    )


def trade_day_by_day(known: Prices, trading: TradingConfig, days: int, traders: int, decide: Decide) -> DecidedTrades:
    """Let traders decide after the close of each day, by the rules of `TradingEnvironment`.

    Args:
        known: prices of the span, as `prices_of_span` returns them with `trading.holding_days` days after it.
        trading: the rules. Positions may be opened on every day; there is no settlement.
        days: days of the span.
        traders: number of traders.
        decide: gives each day's actions.
    """
    as_one = {"trading_days": days, "settlement_days": trading.holding_days, "credit": "decision"}
    environment = TradingEnvironment(known, trading.model_copy(update=as_one), record_trades=True)
    environment.reset(torch.zeros(traders, dtype=torch.int64))
    nothing = torch.zeros((traders, known.assets))
    while not environment.done:
        step = environment.step_index
        environment.step(*(decide(step, environment.portfolio()) if step < days else (nothing, nothing)))
    table = environment.trades()
    trader, day = table["episode"].to_numpy(), table["decision_day"].to_numpy()
    asset, fill_day = table["asset"].to_numpy(), table["fill_day"].to_numpy()
    made = (trader, day, table.groupby(["episode", "decision_day"]).cumcount().to_numpy())
    opened = ~torch.isnan(known.open).cpu().numpy()
    trades = DecidedTrades.none(traders, days, trading.purchases_per_day)
    trades.asset[made] = asset
    trades.at_open[made] = opened[fill_day, asset] & (trading.fill == "next_open")
    trades.at_target[made] = table["reason"].to_numpy() == "target"
    trades.delisted[made] = table["reason"].to_numpy() == "delisted"
    for name in ("exit_day", "entry", "exit", "target", "coefficient"):
        getattr(trades, name)[made] = table[name].to_numpy()
    return trades
