"""The science and the state of Eigen: market, trading, population, learning, evolution, checkpoints."""

from eigen_core.common.process import prepare_libraries

__version__ = "0.1.0"

# Here, because every process that trains imports this first.
prepare_libraries()
