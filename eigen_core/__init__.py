"""The science and the state of Eigen: market, trading, population, learning, evolution, checkpoints."""

__version__ = "0.1.0"
