"""How the system that came before stored its state: arrays pickled into a file compressed with gzip, level 6.

Pickle is used here alone, to be measured beside our checkpoints, and reads nothing but what this process has written.
"""

import gzip
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

_LEVEL = 6


def save_pickled(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors as that system did; it did not wait for the disk."""
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    with gzip.open(path, "wb", compresslevel=_LEVEL) as file:
        pickle.dump(arrays, file)


def load_pickled(path: Path) -> dict[str, np.ndarray]:
    """Read what `save_pickled` has written."""
    with gzip.open(path, "rb") as file:
        arrays: dict[str, np.ndarray] = pickle.load(file)
        return arrays
