"""Backtests of agents that make trades."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eigen_core.config import AccountConfig, Config, TradingConfig
from eigen_core.judging.backtest import NextOrders, Order, Position, TaskBacktest
from eigen_core.market import Panel
from eigen_core.networks import AgentNetwork
from eigen_core.networks.actions import market_actions
from eigen_core.trading import DecidedTrades, EquityCurve, Prices, episode_times, trade_accounts
from eigen_core.trading.excess import alpha_of_days, excess_of_trades
from eigen_core.trading.matched_traders import play_matched_traders, play_shifted_trades
from eigen_core.trading.prices import prices_of_span
from eigen_core.trading.trades import TradedAccounts, trade_day_by_day

_WEEK = 7


def _concatenated(parts: Sequence[DecidedTrades], axis: int = 0) -> DecidedTrades:
    names = [field.name for field in fields(DecidedTrades)]
    return DecidedTrades(**{name: np.concatenate([getattr(part, name) for part in parts], axis) for name in names})


class MarketBacktest(TaskBacktest[DecidedTrades, TradedAccounts]):
    """Agents make trades."""

    _actions = staticmethod(market_actions)
    _concatenated = staticmethod(_concatenated)
    _play_shifted = staticmethod(play_shifted_trades)
    _play_matched = staticmethod(play_matched_traders)

    @staticmethod
    def outcome_days(trading: TradingConfig) -> int:
        """Return the longest time that a position is held."""
        return trading.holding_days

    def accounts(self, decided: DecidedTrades, span: range, settings: AccountConfig | None = None) -> TradedAccounts:
        """Return the accounts of agents that make these trades."""
        closes = self._known(span).last_close[: len(span)].cpu().numpy()
        return trade_accounts(decided, closes, self._dates(span), self.config.trading, settings or self.config.account)

    def _decide(self, weights: Tensor, span: range, *, ensemble: bool) -> DecidedTrades:
        return decide_trades(self._network, self._known(span), self.config, weights, span, ensemble=ensemble)

    def _compared(
        self, decided: DecidedTrades, span: range, accounts: TradedAccounts, equal: EquityCurve, *, by_timing: bool
    ) -> dict[str, Any]:
        trading = self.config.trading
        excess, alpha = excess_of_trades(decided, self._known(span), trading, any_day=by_timing)
        if by_timing:
            alpha = alpha_of_days(accounts.together().returns, equal.returns, self._year(span))
        return {"excess": excess, "alpha": alpha, "holding_days": trading.holding_days}

    def next_orders(self, weights: Tensor, first: int) -> NextOrders:
        """Return the purchases, and the standing sale of each position."""
        config, panel, known_days = self.config, self.panel, range(first, self.panel.days + 1)
        span, holding_days = range(first, panel.days), config.trading.holding_days
        known = prices_of_span(_with_a_day_at_the_last_close(self._prices), known_days, holding_days)
        own = weights.to(self.device)[None]
        decided = decide_trades(self._network, known, config, own, span)
        decided = _concatenated([decided, DecidedTrades.none(1, 1, decided.asset.shape[2])], axis=1)
        dates = np.append(self._dates(span), panel.dates[-1] + np.timedelta64(1, "D"))
        closes = known.last_close[: len(known_days)].cpu().numpy()
        accounts = trade_accounts(decided, closes, dates, config.trading, config.account)

        last, shares = len(span) - 1, accounts.shares[0]
        sessions = known.session[: len(span)].cpu().numpy()
        assets, targets, entries = decided.asset[0], decided.target[0], decided.entry[0]
        bought = [(int(day), int(purchase)) for day, purchase in np.argwhere(shares > 0.0)]
        held = [made for made in bought if made[0] < last < decided.exit_day[0][made]]
        orders = []
        for made in [*(made for made in bought if made[0] == last), *held]:
            buys = made[0] == last
            price = entries[made] if buys else targets[made]
            orders.append(
                Order(
                    symbol=panel.symbols[assets[made]],
                    side="buy" if buys else "sell",
                    size=float(shares[made]),
                    money=float(accounts.paid[0][made] if buys else shares[made] * price),
                    price=float(price),
                    target=float(targets[made]),
                    latest_exit=_latest_exit(panel, sessions, made[0], int(assets[made]), holding_days),
                )
            )
        positions = [
            Position(
                symbol=panel.symbols[assets[made]],
                size=float(shares[made]),
                entry=float(entries[made]),
                worth=float(shares[made] * closes[last, assets[made]]),
                decided=str(dates[made[0]]),
            )
            for made in held
        ]
        equity = float(accounts.equity[0, last])
        cash = equity * (1.0 - float(accounts.exposure[0, last]))
        money: dict[str, dict[str, float]] = {str(date): {} for date in dates[:-1]}
        for made in bought:
            money[str(dates[made[0]])][panel.symbols[assets[made]]] = float(accounts.paid[0][made])
        by_date = {date: " ".join(paid) or None for date, paid in money.items()}
        return NextOrders(str(dates[last]), equity, cash, tuple(orders), tuple(positions), by_date, money)


@torch.no_grad()
def decide_trades(
    network: AgentNetwork, known: Prices, config: Config, weights: Tensor, span: range, *, ensemble: bool = False
) -> DecidedTrades:
    """Return the trades that agents decide on over a span of days.

    Args:
        network: forward passes.
        known: prices of the span (`prices_of_span`).
        config: of the run.
        weights: float32 `[agents, parameters]`.
        span: days of the panel; a whole window lies before the first decision.
        ensemble: the agents trade one portfolio, by the means of their actions.

    The time in the episode that agents see begins again after every `trading.trading_days` days, as in training.
    """
    trading, agents = config.trading, len(weights)
    critic = network.critic_layout.views(weights[:, : network.critic_layout.size])
    actor = network.actor_layout.views(weights[:, network.critic_layout.size :])
    times = episode_times(trading, weights.device)
    prepared = torch.empty(0)

    def decide(step: int, portfolios: Tensor) -> tuple[Tensor, ...]:
        nonlocal prepared
        row = step % trading.trading_days
        if row == 0:
            days = min(trading.trading_days, len(span) - step)
            market = network.encode_block(critic, span.start + step, days)
            prepared = network.prepare_actor(actor, market, times[:days])
        seen = portfolios.float().unsqueeze(1).expand(agents, -1, -1, -1) if network.portfolio_values else None
        actions = network.policy(actor, prepared[:, row : row + 1], seen).play(None).actions[:, 0]
        if ensemble:
            actions = actions.mean(dim=0, keepdim=True)
        return actions.unbind(-1)

    return trade_day_by_day(known, trading, len(span), 1 if ensemble else agents, decide)


def _with_a_day_at_the_last_close(prices: Prices) -> Prices:
    """Add a day on which each asset that is tradable on the last day trades at its close."""
    close = torch.where(prices.tradable[-1:], prices.close[-1:], torch.nan)
    later = dict.fromkeys(("open", "high", "close"), close)
    later |= {name: getattr(prices, name)[-1:] for name in ("last_close", "tradable", "precedence", "last_day")}
    later |= {"missing": ~prices.tradable[-1:], "session": torch.ones_like(prices.tradable[-1:])}
    extended: dict[str, Any] = {name: torch.cat([getattr(prices, name), row]) for name, row in later.items()}
    return replace(prices, **extended)


def _latest_exit(panel: Panel, sessions: NDArray[np.bool_], decided: int, asset: int, holding_days: int) -> str | None:
    """Return the date on which a sale is due, by the asset's weekdays; holidays count. None: it waits for a fill."""
    left = holding_days - int(sessions[decided + 1 :, asset].sum())
    if left <= 0:
        return None
    # 1970-01-01 was a Thursday.
    dates = panel.dates[panel.valid[:, asset]]
    weekdays = np.bincount((dates.astype("datetime64[D]").astype(np.int64) + 3) % _WEEK, minlength=_WEEK)
    mask = (weekdays > weekdays.max() / 2).tolist()
    return str(np.busday_offset(panel.dates[-1], left, roll="backward", weekmask=mask))
