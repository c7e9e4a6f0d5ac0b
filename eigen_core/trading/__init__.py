"""Trading: orders, episodes and their rewards, accounts in money, and their metrics."""
