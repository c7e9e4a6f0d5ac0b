"""Small runs in stores to look after: cleaned, verified, exported."""

from pathlib import Path
from typing import Any

import torch
import upload_cases
from flow_cases import small_flow_config

from eigen_core.checkpoint.run_contents import RunLocation
from eigen_core.checkpoint.session import create_run, open_session
from eigen_core.checkpoint.snapshot import Snapshot
from eigen_core.config import Config
from eigen_core.runs.journals import remember_own_settings


def run_config(store: str | Path, here: Path, **checkpoint: Any) -> Config:
    settings = {"local": str(here), "upload_mb_per_second": 0, "finish_seconds": 60, **checkpoint}
    config = small_flow_config(Path("store"), checkpoint=settings)
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"store": str(store)})})


def champion_weights(generation: int) -> torch.Tensor:
    return torch.arange(64, dtype=torch.float32) + generation


def snapshot_of(generation: int) -> Snapshot:
    """A generation with a champion and a replay buffer; no two share a blob but the layout."""
    plain = upload_cases.snapshot_of(generation)
    return Snapshot(
        generation,
        {**plain.tensors, "champion": {"weights": champion_weights(generation)}},
        {"history": [], "telemetry": [], "champion": {"symbols": ["A"], "layout": [], "generation": generation}},
        0,
        plain.ring,
    )


def save_generations(config: Config, name: str, *generations: int) -> RunLocation:
    """Save generations of a run, which is made if missing, and keep also those that `config` would not keep."""
    settings = config.checkpoint.model_copy(update={"keep_last": 100, "keep_local": 100})
    location = RunLocation.of(settings, name)
    if not location.exists():
        remember_own_settings(RunLocation.of(config.checkpoint, name), config.market.data)
        create_run(location, config.model_dump(mode="json"))
    with open_session(RunLocation.of(settings, name), settings) as session:
        session.load_newest()
        for generation in generations:
            session.save(snapshot_of(generation), config.model_dump(mode="json"))
        session.finish()
    return location


def objects_of(location: RunLocation) -> dict[str, int]:
    return _sizes(location.stored.store, location.name)


def objects_here(location: RunLocation) -> dict[str, int]:
    return _sizes(location.local.store, location.name)


def _sizes(store: Any, name: str) -> dict[str, int]:
    """Sizes of all objects of a run but leases and the state of uploads (bytes)."""
    passing = tuple(f"{name}/{part}" for part in ("lease/", "lock", "uploads.json"))
    return {one.name: one.bytes for one in store.objects(f"{name}/") if not one.name.startswith(passing)}
