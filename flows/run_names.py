"""What a run is called that was given no name."""

from datetime import UTC, datetime

from eigen_core.config import Config


def default_run_name(config: Config) -> str:
    """Return a name for a run that was given none: its preset and the time."""
    return f"{config.preset}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
