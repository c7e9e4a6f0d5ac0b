"""Agents judged in money: backtests, verdicts, walk-forward tests, trials of verdicts, and orders of the next day."""
