"""Agents of a run day after day over any span of a market: what they earn in money, and what they order next."""
