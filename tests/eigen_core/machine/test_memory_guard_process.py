"""The guard over a real process that leaks: ended before its limit, with a report that names who leaks."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.cpu

_LEAK = """
import json, resource, sys
from eigen_core.config.model import MemoryConfig
from eigen_core.machine import MemoryGuard, MemoryGuardError, host_bytes, host_limits
from eigen_core.machine.usage import address_space_bytes
from eigen_core.common.progress import report_progress
import torch

class LeakingEpisode:
    def __init__(self):
        self.prices = torch.ones(1_000_000)
        self.names = bytearray(200_000)  # line 12

limit_gb, kept = None, []
if sys.argv[1] == "address space":
    # The libraries of a torch for GPUs take gigabytes of addresses: 400 MB must be left below the guard's line.
    limit = int((address_space_bytes() + 400_000_000) / 0.95)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
else:
    limit_gb = (host_bytes() + 300_000_000) / 1e9
memory = MemoryConfig(limit_gb=limit_gb, sample_seconds=0.001, soft=0.5, hard=0.95, trace=sys.argv[1] == "own limit")
limits = host_limits(memory)
try:
    with MemoryGuard(limits, memory) as guard:
        for generation in range(1, 1_000):
            with guard.phase("train", generation):
                for step in range(10):
                    kept.append(LeakingEpisode())
                    report_progress("train", step + 1, 10)
except MemoryGuardError as error:
    print(json.dumps({
        "kept": len(kept), "message": str(error), "phase": error.phase, "largest": error.report.parts[0].name,
        "leak": next(p.host for p in error.report.parts if p.name == "tensors of no known owner"),
        "counted": error.report.limits[0].counted,
        "traced": error.report.traced, "origin": error.report.limits[0].origin, "limit": error.report.limits[0].bytes,
    }))
"""


@pytest.mark.parametrize("kind", ["address space", "own limit"])
@pytest.mark.thorough
def test_a_process_that_leaks_is_ended_by_its_guard_and_told_who_leaks(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", _LEAK, kind], capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen["phase"] == "train"
    assert seen["counted"] < seen["limit"]
    # Each holds 4 MB, and 300 or 400 MB were free.
    assert 20 < seen["kept"] <= 100
    assert seen["leak"] == pytest.approx(4e6 * seen["kept"], rel=0.05)
    assert ("RLIMIT_AS" if kind == "address space" else "memory.limit_gb") in seen["origin"]
    # Only the guard with its own limit traces: the one with few addresses must not spend them.
    if kind == "address space":
        assert not seen["traced"]
    else:
        assert " <string>:12 < <string>:" in seen["traced"][0]
