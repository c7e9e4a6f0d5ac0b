"""Random generators keyed by their purpose: a draw does not depend on order, retries or groups of agents."""

import hashlib

import numpy as np


def keyed_generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the random generator that a run's `seed` and a `key` determine.

    It is counter-based (Philox4x64-10; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), keyed by the
    SHA-256 of seed and key, and draws on the CPU: the bits do not depend on the device.

    `key` identifies the draws, by convention (generation, phase, agent, purpose).
    """
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *key))
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=words))
