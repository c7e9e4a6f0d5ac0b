"""The name under which pip knows Eigen, and the command that installs an optional dependency."""

DISTRIBUTION = "eigen-trader"
"""`eigen` on PyPI is a package of other authors; the command and the packages keep their names."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra of the distribution."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
