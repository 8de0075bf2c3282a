"""Batches as dictionaries, against plain lists of rows."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphlearn_dist.cluster.data.batch_packing import PACKING_ALGORITHMS, SequencePacking, plan_packed
from graphlearn_dist.cluster.data.batched_data_dict import (
    BatchedDataDict,
    DynamicBatchingArgs,
    SequencePackingArgs,
    SlicedDataDict,
)
from graphlearn_dist.errors import InvalidArgumentError

lengths = st.lists(st.integers(1, 9), min_size=1, max_size=24)


def make(row_lengths: list[int], **keywords: Any) -> BatchedDataDict:
    """Row i is i, [i] * 3, the text of i, and its length."""
    ids = torch.arange(len(row_lengths))
    wide = ids[:, None].repeat(1, 3)
    texts = [str(i) for i in range(len(row_lengths))]
    return BatchedDataDict(
        {"id": ids, "wide": wide, "text": texts, "input_lengths": torch.tensor(row_lengths)}, **keywords
    )


def ids(batch: BatchedDataDict) -> list[int]:
    """The rows of a batch, after asserting that all its values agree on them."""
    rows: list[int] = batch["id"].tolist()
    assert batch["wide"].tolist() == [[row] * 3 for row in rows]
    assert batch["text"] == [str(row) for row in rows]
    assert batch.size == len(rows)
    return rows


# --- sharding ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_even_shards_hold_their_part_of_every_chunk(shards: int, per_shard: int, chunks: int) -> None:
    chunk = shards * per_shard
    rows = list(range(chunk * chunks))
    cut = make([1] * len(rows)).shard_by_batch_size(shards, chunk)
    assert isinstance(cut, list)
    expected: list[list[int]] = [[] for _ in range(shards)]
    for start in range(0, len(rows), chunk):
        for shard in range(shards):
            expected[shard] += rows[start + shard * per_shard : start + (shard + 1) * per_shard]
    assert [ids(part) for part in cut] == expected
    for number in range(chunks):
        assert ids(cut[-1].get_batch(number)) == ids(cut[-1].get_batch(number, per_shard))


@given(st.integers(0, 20), st.integers(1, 6))
def test_uneven_shards_differ_by_one(rows: int, shards: int) -> None:
    cut = make([1] * rows).shard_by_batch_size(shards, allow_uneven_shards=True)
    assert isinstance(cut, list)
    sizes = [part.size for part in cut]
    assert [row for part in cut for row in ids(part)] == list(range(rows))
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(lengths, st.integers(1, 3), st.integers(1, 2), st.integers(1, 4))
def test_dynamic_batching(row_lengths: list[int], shards: int, chunks: int, multiple: int) -> None:
    row_lengths = row_lengths[: len(row_lengths) // (shards * chunks) * shards * chunks]
    chunk = len(row_lengths) // chunks
    if not chunk:
        return
    batch = make(row_lengths)
    arguments = DynamicBatchingArgs(max_tokens_per_microbatch=24, sequence_length_round=multiple)
    cut, order = batch.shard_by_batch_size(shards, chunk, dynamic_batching_args=arguments)
    assert [row for part in cut for row in ids(part)] == order
    for number in range(chunks):
        own = row_lengths[number * chunk : (number + 1) * chunk]
        dealt = [sorted(own)[shard::shards] for shard in range(shards)]
        for part, expected in zip(cut, dealt, strict=True):
            one = part.get_batch(number)
            assert one["input_lengths"].tolist() == expected
            seen = []
            for micro, length in zip(
                one.make_microbatch_iterator_with_dynamic_shapes(), one.micro_batch_lengths[0], strict=True
            ):
                assert length % multiple == 0
                assert max(micro["input_lengths"].tolist()) <= length < max(micro["input_lengths"].tolist()) + multiple
                assert micro.size * length <= 24
                assert micro["wide"].shape[1] == min(3, length)
                seen += micro["id"].tolist()
            assert seen == ids(one)
            made = list(one.make_microbatch_iterator_with_dynamic_shapes())
            assert one.get_microbatch_iterator_dynamic_shapes_len() == len(made)
    check_order(cut, order, len(row_lengths))


@settings(deadline=None)
@given(lengths, st.integers(1, 3), st.sampled_from(PACKING_ALGORITHMS), st.integers(1, 3))
def test_sequence_packing(row_lengths: list[int], shards: int, algorithm: str, multiple: int) -> None:
    arguments = SequencePackingArgs(
        max_tokens_per_microbatch=12, algorithm=algorithm, sequence_length_pad_multiple=multiple
    )
    cut, order = make(row_lengths).shard_by_batch_size(shards, sequence_packing_args=arguments)
    assert len({len(part.micro_batch_indices[0]) for part in cut}) == 1
    for part in cut:
        one = part.get_batch(0)
        seen = []
        for micro, length in zip(
            one.make_microbatch_iterator_for_packable_sequences(), one.micro_batch_lengths[0], strict=True
        ):
            assert sum(-(-cost // multiple) * multiple for cost in micro["input_lengths"].tolist()) == length <= 12
            seen += ids(micro)
        assert seen == ids(one)
        spans, longest = one.get_microbatch_iterator_for_packable_sequences_len()
        assert spans == len(list(one.make_microbatch_iterator_for_packable_sequences()))
        assert longest == max(one.micro_batch_lengths[0], default=0)
    check_order(cut, order, len(row_lengths))


def check_order(cut: list[SlicedDataDict], order: list[int], rows: int) -> None:
    """The shards laid end to end, reordered, are the batch."""
    joined = BatchedDataDict.from_batches(cut)
    assert ids(joined) == order
    joined.reorder_data(order)
    assert ids(joined) == list(range(rows))


def test_packing_by_hand() -> None:
    cut, order = make([7, 2, 5, 3]).shard_by_batch_size(2, sequence_packing_args={"max_tokens_per_microbatch": 10})
    # The heaviest first: 7, then 5; 3 fits beside 7, 2 beside 5.
    assert [ids(part) for part in cut] == [[0, 3], [2, 1]]
    assert order == [0, 3, 2, 1]
    assert cut[0].micro_batch_lengths == [[10]]


def packed(costs: list[int], algorithm: str, bound: int, seed: int = 0) -> list[list[int]]:
    """The rows of each bin."""
    settings = SequencePacking(bound, algorithm, seed=seed)
    plan = plan_packed(costs, 1, settings)
    return [plan.rows[0][start:end] for start, end in plan.micro_batches[0]]


def test_modified_first_fit_decreasing_by_hand() -> None:
    """Bins of 60: a medium row beside 34, a pair of small ones beside 31, what still fits everywhere, and one left."""
    costs = [40, 34, 31, 22, 11, 12, 17, 18, 3, 2]
    assert packed(costs, "modified_first_fit_decreasing", 60) == [[0, 6, 8], [1, 3, 9], [2, 4, 7], [5]]
    # Without any row above half of a bin, nothing but first fit is left: 22 + 18 + 17 + 3, and 12 + 11 + 2.
    assert packed(costs[3:], "modified_first_fit_decreasing", 60) == [[0, 4, 3, 5], [2, 1, 6]]
    assert packed(costs[3:], "first_fit_decreasing", 60) == [[0, 4, 3, 5], [2, 1, 6]]


def test_modified_first_fit_decreasing_needs_fewer_bins() -> None:
    """Nine bins of 51 + 26 + 23 or 27 + 27 + 23 + 23 would do; first fit puts 27 beside 51, which wastes 22 each."""
    costs = [51] * 6 + [27] * 6 + [26] * 6 + [23] * 12
    assert len(packed(costs, "modified_first_fit_decreasing", 100)) == 10
    assert len(packed(costs, "first_fit_decreasing", 100)) == 11


def test_the_shuffle_of_first_fit_is_drawn_from_its_seed() -> None:
    costs = [1] * 12
    bins = [packed(costs, "first_fit_shuffle", 3, seed) for seed in (1, 1, 2)]
    assert bins[0] == bins[1] != bins[2]
    assert bins[0] != packed(costs, "concatenative", 3)
    assert sorted(row for own in bins[2] for row in own) == list(range(12))
    # Every order is drawn: with three rows all six of them.
    orders = {tuple(row for own in packed([1] * 3, "first_fit_shuffle", 3, seed) for row in own) for seed in range(60)}
    assert len(orders) == 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"shards": 0}, "shards: expected at least 1"),
        ({"shards": 4}, "shards: expected a divisor of 6"),
        ({"shards": 1, "batch_size": 4}, "batch_size: expected a divisor of 6"),
        ({"shards": 1, "batch_size": 2, "allow_uneven_shards": True}, "batch_size: expected None"),
        ({"shards": 1, "dynamic_batching_args": {"max_tokens_per_microbatch": 2}}, "room for the longest row"),
        ({"shards": 1, "sequence_packing_args": {"max_tokens_per_microbatch": 2}}, "room for the longest row"),
        ({"shards": 1, "dynamic_batching_args": {"tokens": 2}}, "dynamic_batching_args: expected keys of"),
        ({"shards": 1, "dynamic_batching_args": {}, "sequence_packing_args": {}}, "sequence_packing_args"),
        (
            {"shards": 1, "sequence_packing_args": {"max_tokens_per_microbatch": 9, "input_lengths_key": "no"}},
            "input_lengths_key",
        ),
        (
            {"shards": 1, "sequence_packing_args": {"max_tokens_per_microbatch": 9, "algorithm": "magic"}},
            "algorithm: expected one of",
        ),
    ],
)
def test_what_cannot_be_shared_out(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        make([5] * 6).shard_by_batch_size(**arguments)


# --- cutting and joining ----------------------------------------------------------------------------------------


@given(st.integers(0, 9), st.data())
def test_rows_are_those_of_a_list(rows: int, data: st.DataObject) -> None:
    batch = make([1] * rows)
    start = data.draw(st.integers(0, rows))
    end = data.draw(st.integers(start, rows))
    assert ids(batch.slice(start, end)) == list(range(rows))[start:end]
    wanted = data.draw(st.lists(st.integers(0, rows - 1))) if rows else []
    assert ids(batch.select_indices(wanted)) == wanted
    mask = data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
    assert ids(batch.select_indices(torch.tensor(mask, dtype=torch.bool))) == [i for i in range(rows) if mask[i]]
    places = data.draw(st.permutations(range(rows)))
    moved = [0] * rows
    for row, place in enumerate(places):
        moved[place] = row
    batch.reorder_data(places)
    assert ids(batch) == moved
    chunks = data.draw(st.sampled_from([n for n in range(1, rows + 1) if rows % n == 0] or [1]))
    assert [row for rank in range(chunks) for row in ids(batch.chunk(rank, chunks))] == moved


def test_join_pads_to_the_longest() -> None:
    first = BatchedDataDict(a=torch.tensor([[1, 2]]), c=torch.ones(1, 1, 2), n=[1], pad_values={"a": -1})
    second = BatchedDataDict(a=torch.tensor([[3, 4, 5]]), c=torch.ones(1, 2, 2), n=[2])
    joined = BatchedDataDict.from_batches([first, BatchedDataDict(), second])
    assert joined["a"].tolist() == [[1, 2, -1], [3, 4, 5]]
    assert joined["c"].tolist() == [[[1, 1], [0, 0]], [[1, 1], [1, 1]]]
    assert joined["n"] == [1, 2]
    assert BatchedDataDict.from_batches([first, second], {"a": 7})["a"].tolist()[0] == [1, 2, 7]
    assert len(BatchedDataDict.from_batches([])) == 0


def test_batches_without_rows_add_nothing_to_a_join() -> None:
    """Also such as lack a key, or have other shapes: a worker that had nothing to do knows no better."""
    full = BatchedDataDict(a=torch.tensor([[1, 2]]), n=["x"])
    for empty in ({"a": torch.zeros(0, 7)}, {"n": []}, {"a": []}, {"a": torch.zeros(0), "n": []}, {}):
        joined = BatchedDataDict.from_batches([empty, full, empty])
        assert joined["a"].tolist() == [[1, 2]]
        assert joined["n"] == ["x"]
    joined = BatchedDataDict.from_batches([{"a": torch.zeros(0, 3)}, {"n": []}])
    assert (joined["a"].shape, joined["n"], joined.size) == ((0, 3), [], 0)
    with pytest.raises(KeyError, match="expected key 'b' in each, batch 0 has"):  # rows of b are not to be had
        BatchedDataDict.from_batches([{"a": torch.zeros(1)}, {"a": torch.zeros(0), "b": torch.zeros(0)}])


def test_join_of_batches_that_do_not_fit() -> None:
    one = torch.zeros(1, 2, 3)
    with pytest.raises(KeyError, match="expected key 'b' in each, batch 1 has"):
        BatchedDataDict.from_batches([{"a": one, "b": one}, {"a": one}])
    with pytest.raises(KeyError, match="batch 0"):
        BatchedDataDict.from_batches([{"a": one}, {"a": one, "b": one}])
    with pytest.raises(ValueError, match="differ in dimension 1"):
        BatchedDataDict.from_batches([{"a": one}, {"a": torch.zeros(1, 2, 4)}])
    with pytest.raises(ValueError, match="tensors or lists"):
        BatchedDataDict.from_batches([{"a": one}, {"a": [1]}])


def test_repeat_interleave_copies() -> None:
    batch = BatchedDataDict(a=torch.tensor([1, 2]), b=[[1], [2]], metadata={"split": "train"})
    for repeated in (batch.repeat_interleave(2), batch.repeat_interleave(repeats=2)):
        assert repeated["a"].tolist() == [1, 1, 2, 2]
        assert repeated["b"] == [[1], [1], [2], [2]]
        assert repeated.metadata == {"split": "train"}
        repeated["b"][0].append(9)
        assert repeated["b"][1] == [1]
        assert batch["b"] == [[1], [2]]
    assert batch.size == 2
    for bad in ({}, {"num_repeats": 1, "repeats": 1}, {"num_repeats": -1}):
        with pytest.raises(ValueError, match="num_repeats"):
            batch.repeat_interleave(**bad)


def test_devices() -> None:
    batch = BatchedDataDict(a=torch.tensor([1, 2]), b=["x", "y"])
    moved = batch.to_device("meta")
    assert moved is not batch
    assert (moved["a"].device.type, batch["a"].device.type, moved["b"]) == ("meta", "cpu", ["x", "y"])
    assert batch.to("meta") is batch
    assert batch["a"].device.type == "meta"


def test_masks_micro_batches_and_truncation() -> None:
    batch = make([1, 3, 0, 2])
    assert batch.padding_mask("input_lengths", 3).int().tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]]
    assert [ids(micro) for micro in batch.make_microbatch_iterator(2)] == [[0, 1], [2, 3]]
    batch.truncate_tensors(1, 2)
    assert batch["wide"].shape == (4, 2)
    assert batch["id"].shape == (4,)
    batch.truncate_tensors(1, 5)
    assert batch["wide"].shape == (4, 2)


def test_it_is_a_dictionary_that_travels() -> None:
    batch = make([1, 2], metadata={"epoch": 3}, pad_values={"wide": 5})
    same = pickle.loads(pickle.dumps(batch.shard_by_batch_size(1)[0]))
    assert isinstance(same, SlicedDataDict)
    assert ids(same) == [0, 1]
    assert (same.metadata, same.pad_values, same.elem_counts_per_gb) == ({"epoch": 3}, {"wide": 5}, [2])
    assert same.get_dict() is same.data
    assert set(same) == {"id", "wide", "text", "input_lengths"}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda b: b.slice(1, 4), "0 <= start <= end <= 3"),
        (lambda b: b.slice(2, 1), "0 <= start <= end <= 3"),
        (lambda b: b.chunk(0, 2), "divisor of 3"),
        (lambda b: b.chunk(3, 3), "rank: expected 0 to 2"),
        (lambda b: b.get_batch(0), "batch_size"),
        (lambda b: b.get_batch(1, 2), "slice"),
        (lambda b: b.shard_by_batch_size(1)[0].get_batch(1), "batch_idx: expected 0 to 0"),
        (lambda b: b.reorder_data([0, 1, 1]), "each of 0 to 2 once"),
        (lambda b: b.select_indices(torch.tensor([True])), r"a mask \[3\]"),
        (lambda b: b.make_microbatch_iterator(2), "divisor of 3"),
        (lambda b: list(b.make_microbatch_iterator_for_packable_sequences()), "get_batch first"),
        (lambda b: list(b.make_microbatch_iterator_with_dynamic_shapes()), "get_batch first"),
        (lambda b: b.get_microbatch_iterator_dynamic_shapes_len(), "get_batch first"),
        (lambda b: b.get_microbatch_iterator_for_packable_sequences_len(), "get_batch first"),
        (lambda b: BatchedDataDict(b, extra=[1]).size, "one number of rows"),
        (lambda b: BatchedDataDict(b, extra=1).size, "extra: expected a tensor with rows or a list"),
    ],
)
def test_errors_say_what_was_expected(call: Any, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        call(make([1, 1, 1]))
