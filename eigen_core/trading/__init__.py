"""The trading environment: orders, accounting and rewards as arrays over episodes."""
