"""One Prefect task a phase."""
