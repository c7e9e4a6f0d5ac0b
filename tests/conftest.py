"""What holds for all tests: own caches, a quiet Prefect of their own, one thread."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis
import pytest

_TESTS = Path(__file__).parent

# pytest puts this folder first on the path, where its folders would hide the packages whose names they mirror.
sys.path[:0] = [str(_TESTS.parent), str(_TESTS / "support")]

from tested_device import VARIABLE  # noqa: E402 - found only now

from eigen_core.common.process import default_cache_root  # noqa: E402 - found only now

# Fixtures that any test may ask for: gcs_emulator, gcs_bucket, quick_retries, fault_proxy.
pytest_plugins = ["gcs_emulator", "fault_proxy"]

# Shells and CI runners let what they start in the background ignore Ctrl-C, and with it all that is started here.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, so that a change is red for what it does; --hypothesis-profile=default draws new ones.
# Fifty are enough of the same ones. Without a deadline, which a busy machine misses.
hypothesis.settings.register_profile("repeated", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("repeated")

SESSION_FOLDER = Path(tempfile.mkdtemp(prefix="eigen-tests-"))

# Servers of the tests begin with the database that `make setup` keeps: each would migrate a new one for seconds.
with suppress(FileNotFoundError):
    shutil.copytree(default_cache_root() / "prefect", SESSION_FOLDER / "cache" / "prefect")

# All of this must be set before Prefect, torch and the market are imported.
for name in [name for name in os.environ if name.startswith("PREFECT_")]:
    del os.environ[name]
os.environ["PREFECT_HOME"] = str(SESSION_FOLDER / "prefect")
os.environ["EIGEN_CACHE"] = str(SESSION_FOLDER / "cache")
os.environ["DO_NOT_TRACK"] = "1"
# A GPU that trainings are not to compute on: presets would take it.
if os.environ.get(VARIABLE) != "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it
os.environ.setdefault("OMP_NUM_THREADS", "1")
for name in (
    "LOGGING_TO_API",
    "SERVER_SERVICES_TASK_RUN_RECORDER",
    "SERVER_SERVICES_EVENT_PERSISTER",
    "SERVER_SERVICES_TRIGGERS",
    "SERVER_SERVICES_SCHEDULER",
    "SERVER_SERVICES_LATE_RUNS",
    "SERVER_SERVICES_FOREMAN",
):
    os.environ[f"PREFECT_{name}_ENABLED"] = "false"
os.environ["PREFECT_API_BLOCKS_REGISTER_ON_START"] = "false"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"


def pytest_configure() -> None:
    from tested_device import require_device

    require_device()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze the million objects that imports make: each training in this process would look through them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of `e2e` together, as those of a file are: they share a server, a worker and a whole run."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope
    scheduling._split_scope = lambda test: "tests/e2e" if test.startswith("tests/e2e/") else file_of(test)
    return scheduling


@pytest.fixture(autouse=True)
def _tested_device(request: pytest.FixtureRequest) -> Iterator[None]:
    from tested_device import tested_device

    with tested_device(request.node):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
    """Make what several tests share on the device too."""
    from tested_device import with_device

    with nullcontext() if fixturedef.scope == "function" else with_device():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def session_folder() -> Iterator[Path]:
    yield SESSION_FOLDER
    shutil.rmtree(SESSION_FOLDER, ignore_errors=True)


@pytest.fixture(scope="session")
def measured() -> Callable[[str], None]:
    """Show a sentence in pytest's summary of warnings, which has those of all processes of pytest-xdist."""
    return lambda sentence: warnings.warn(sentence, stacklevel=2)


@pytest.fixture
def without_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        yield


@pytest.fixture(scope="session")
def prefect_api() -> Iterator[None]:
    from kept_database import begin_with_copy, kept_file
    from prefect.settings import (
        PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
        PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED,
        temporary_settings,
    )
    from prefect.testing.utilities import prefect_test_harness

    # The folder that the harness would make, and removes.
    folder = tempfile.mkdtemp(prefix="eigen-tests-")
    begin_with_copy(Path(folder) / "prefect-test.db", kept_file())
    # No flow run comes to be but by a test: the server's clock would ask for those of a schedule at any instant.
    with (
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None, PREFECT_SERVER_SERVICES_SCHEDULER_ENABLED: False}),
        patch("prefect.testing.utilities.mkdtemp", lambda: folder),
        prefect_test_harness(server_startup_timeout=120),
    ):
        gc.freeze()
        yield


@pytest.fixture(scope="session")
def prefect_api_url(prefect_api: None) -> str:  # noqa: ARG001 - the server of this session
    from prefect.settings import PREFECT_API_URL

    return str(PREFECT_API_URL.value())
