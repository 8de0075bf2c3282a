"""Features that are stored in one dtype and read in another."""

from __future__ import annotations

import pytest
import torch

from graphlearn_dist.data import Feature
from graphlearn_dist.errors import InvalidArgumentError


@pytest.mark.parametrize("id2index", [None, torch.tensor([2, 0, 3, 1])], ids=["rows are ids", "table"])
def test_lookups_give_the_output_dtype(id2index: torch.Tensor | None) -> None:
    stored = torch.tensor([[1, -2], [3, 4], [-128, 127], [0, 5]], dtype=torch.int8)
    feature = Feature(stored, id2index, dtype=None, out_dtype=torch.float16)
    ids = torch.tensor([3, 0, 0, 2])
    rows = ids if id2index is None else id2index[ids]
    expected = stored[rows].to(torch.float16)
    assert feature.dtype == torch.float16
    assert feature.feature_tensor.dtype == torch.int8
    assert torch.equal(feature[ids], expected)
    assert torch.equal(feature.share_memory_()[ids], expected)
    out = torch.zeros(5, 2, dtype=torch.float16)
    positions = torch.tensor([4, 0, 1, 2])
    feature.gather_into(out, positions, ids)
    assert torch.equal(out[positions], expected)
    whole = torch.zeros(4, 2, dtype=torch.float64)  # and any other dtype that the caller's memory has
    feature.unified.gather_all(whole, rows)
    assert torch.equal(whole, stored[rows].double())


def test_without_it_rows_stay_as_they_are() -> None:
    feature = Feature(torch.arange(6, dtype=torch.int32).reshape(3, 2), dtype=None)
    assert feature.dtype == feature[torch.tensor([1])].dtype == torch.int32


@pytest.mark.parametrize("stored", [torch.float64, torch.float16, torch.int64])
def test_rows_are_float32_unless_told_otherwise(stored: torch.dtype) -> None:
    rows = torch.arange(6, dtype=stored).reshape(3, 2)
    feature = Feature(rows)
    assert feature.dtype == feature.feature_tensor.dtype == torch.float32
    assert torch.equal(feature[torch.tensor([2, 0])], rows[[2, 0]].float())


@pytest.mark.parametrize(
    ("stored", "wanted"), [(torch.int64, torch.float32), (torch.float32, torch.int8), (torch.bool, torch.float16)]
)
def test_casts_that_are_none(stored: torch.dtype, wanted: torch.dtype) -> None:
    with pytest.raises(InvalidArgumentError, match=f"out_dtype: .*got {wanted} for {stored}"):
        Feature(torch.zeros(2, 2, dtype=stored), dtype=None, out_dtype=wanted)
