"""One Prefect task a file: guard, call, report."""
