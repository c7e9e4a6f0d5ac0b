"""Random generators, one for each purpose: its numbers do not depend on other draws, retries, or grouping of agents."""

import hashlib

import numpy as np


def keyed_generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return a new random generator; equal `seed` (the run's setting) and `key` give equal numbers.

    It is counter-based (Philox4x64-10; Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"), keyed by the
    SHA-256 of seed and key, and draws on the CPU: the bits do not depend on the device.

    `key` names what is drawn, by convention (generation, phase, agent, purpose), such as (7, "evolve", 3, "genes").
    """
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *key))
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=words))
