"""`EIGEN_TEST_DEVICE` chooses where trainings of the tests compute; a device that is not there is refused at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from science_cases import small_config

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        pytest.param(
            "cuda",
            "EIGEN_TEST_DEVICE is cuda, but torch finds no GPU: unset it, or check the driver",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without a GPU"),
        ),
        ("tpu", "EIGEN_TEST_DEVICE is 'tpu': give cpu, cuda or stand-in."),
    ],
)
@pytest.mark.thorough
def test_a_device_that_is_not_there_ends_with_a_sentence(device: str, sentence: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/eigen_core/common/test_randomness.py"],
        cwd=ROOT,
        env={**os.environ, "EIGEN_TEST_DEVICE": device},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert sentence in ended.stdout + ended.stderr


@pytest.mark.cpu
def test_trainings_compute_on_the_processor_unless_it_is_said() -> None:
    assert small_config().device == "cpu"


def test_a_gpu_is_visible_only_where_trainings_compute_on_it() -> None:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") == ""
    assert hidden is (os.environ.get("EIGEN_TEST_DEVICE") != "cuda")
