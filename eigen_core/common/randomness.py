"""Keyed randomness: every draw names what it is for, so order, retries and grouping cannot change it."""

import hashlib

import numpy as np


def keyed_generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the generator that belongs to `key` of the run seeded by `seed`.

    Args:
        seed: the run's seed.
        key: what the draws are for, by convention (generation, phase, agent, purpose).

    The generator is counter-based (Philox4x64-10; Salmon et al. 2011, "Parallel random numbers: as easy as
    1, 2, 3"), keyed by the SHA-256 of its name, and always draws on the host: the bits do not depend on the device.
    """
    name = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *key))
    digest = hashlib.sha256(name.encode()).digest()
    words = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=words))
