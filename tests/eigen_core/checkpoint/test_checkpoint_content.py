"""The hash of named tensors sees every bit of the content, and nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from eigen_core.checkpoint.tensors import tensors_sha256


def test_equal_content_has_equal_hashes() -> None:
    bank = torch.arange(24.0).reshape(4, 6)
    one = {"a": bank[:, 1:4], "b": bank.T}
    other = {"b": bank.T.contiguous(), "a": bank[:, 1:4].clone().requires_grad_()}
    assert tensors_sha256(one) == tensors_sha256(other)


def test_names_types_and_shapes_count() -> None:
    zeros = torch.zeros(6)
    variants = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.reshape(2, 3)},
        {"a": zeros.reshape(3, 2)},
        {"a": zeros.to(torch.int32)},
        {"a": zeros[:5]},
        {"a": -zeros},
        {"a": zeros[:3], "b": zeros[3:]},
        {"a": zeros, "b": zeros[:0]},
        {},
    ]
    assert len({tensors_sha256(tensors) for tensors in variants}) == len(variants)


@given(st.integers(0, 1_599), st.integers(0, 7))
def test_every_bit_counts(byte: int, bit: int) -> None:
    content = torch.arange(1_600).to(torch.uint8)
    changed = content.clone()
    changed[byte] ^= 1 << bit
    tensors = {"x": content.view(torch.float32), "y": torch.ones(2)}
    assert tensors_sha256(tensors) != tensors_sha256({**tensors, "x": changed.view(torch.float32)})
