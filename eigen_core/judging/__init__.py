"""Judging agents in money: backtests, verdicts, walks, orders of the next day, and what is due to luck."""
