"""A batch as a dictionary whose values all have one row per example."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from ...errors import InvalidArgumentError, MissingKeyError
from . import batch_packing
from .batch_packing import DynamicBatching, DynamicBatchingArgs, Plan, SequencePacking, SequencePackingArgs

if TYPE_CHECKING:
    from typing_extensions import Self

Value = Any  # torch.Tensor | list[Any]; what else a caller stores has no rows and is an error where rows are needed


class BatchedDataDict(UserDict[str, Value]):
    """Tensors ``[num_rows, …]`` and lists of ``num_rows`` items by key.

    Args:
        data: the values by key.
        metadata: anything about the batch as a whole; handed on to what is cut from it.
        pad_values: what ``from_batches`` fills up with, by key; 0 elsewhere.
        **values: more values by key.
    """

    def __init__(
        self,
        data: Mapping[str, Value] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        pad_values: Mapping[str, float] | None = None,
        **values: Value,
    ) -> None:
        super().__init__(data, **values)
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.pad_values: dict[str, float] = dict(pad_values or {})
        self.micro_batch_indices: list[list[list[int]]] | None = None
        """``[chunk][micro-batch] = [start, end]``, rows counted within the chunk; set by ``shard_by_batch_size``."""
        self.micro_batch_lengths: list[list[int]] | None = None
        """``[chunk][micro-batch]``: padded length."""
        self.elem_counts_per_gb: list[int] | None = None
        """Rows of each chunk."""

    # --- joining ----------------------------------------------------------------------------------------------

    @classmethod
    def from_batches(
        cls, batches: Sequence[Mapping[str, Value]], pad_value_dict: Mapping[str, float] | None = None
    ) -> Self:
        """The rows of all batches, in order.

        Tensors of two and more dimensions are padded on dimension 1 to the longest of them.

        Args:
            batches: batches with the same keys. One without rows may lack some, or all: it adds nothing. Where no batch
                has rows, the result has none under all keys that any of them has.
            pad_value_dict: what to pad with, by key; else the batches' own ``pad_values``, else 0.

        Raises:
            MissingKeyError: a batch that has rows lacks one that another has (a ``KeyError``).
            InvalidArgumentError: values of a key are not all tensors or all lists, or differ in a later dimension.
        """
        first = next((batch for batch in batches if isinstance(batch, BatchedDataDict) and len(batch)), None)
        joined = cls(metadata=first.metadata if first else None, pad_values=first.pad_values if first else None)
        pad_values = {**joined.pad_values, **(pad_value_dict or {})}
        filled = {number: batch for number, batch in enumerate(batches) if _has_rows(batch)}
        for key in dict.fromkeys(key for batch in batches for key in batch):
            for number, batch in filled.items():
                if key not in batch:
                    raise MissingKeyError(f"batches: expected key {key!r} in each, batch {number} has {list(batch)}")
            values = [batch[key] for batch in filled.values() or batches if key in batch]
            joined[key] = _join(key, values, pad_values.get(key, 0))
        return joined

    def all_gather(self, group: torch.distributed.ProcessGroup | None = None) -> Self:
        """The rows of all ranks of a process group, in order of rank, on every rank; on any device and backend.

        Args:
            group: torch's process group; None means the default one.

        Raises:
            MissingKeyError: the batches do not fit together, as in ``from_batches``; on every rank.
            InvalidArgumentError: likewise, or their tensors have different dtypes.
        """
        ranks = torch.distributed.get_world_size(group)
        outlines: list[dict[str, Value]] = [{} for _ in range(ranks)]
        mine = {k: _Outline(v.dtype, v.shape) if isinstance(v, torch.Tensor) else v for k, v in self.data.items()}
        torch.distributed.all_gather_object(outlines, mine, group)
        # All ranks know what all of them have, and thus gather the same tensors in the same order, or none.
        meta = [{k: v.to_empty("meta") if isinstance(v, _Outline) else v for k, v in one.items()} for one in outlines]
        keys = list(type(self).from_batches(meta))
        device = next((v.device for v in self.data.values() if isinstance(v, torch.Tensor)), _device_of(group))
        gathered: list[dict[str, Value]] = [dict(outline) for outline in outlines]
        for key in keys:
            if any(isinstance(outline.get(key), _Outline) for outline in outlines):
                values = _gather_tensors(self.get(key), key, outlines, device, group)
                for batch, value in zip(gathered, values, strict=True):
                    if isinstance(batch.get(key), _Outline):
                        batch[key] = value
        joined = type(self).from_batches(gathered, self.pad_values)
        joined.metadata, joined.pad_values = dict(self.metadata), dict(self.pad_values)
        return joined

    # --- cutting ----------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of rows; 0 without keys.

        Raises:
            InvalidArgumentError: the values have different numbers of rows.
        """
        counts = {key: _num_rows(key, value) for key, value in self.data.items()}
        if len(set(counts.values())) > 1:
            raise InvalidArgumentError(f"batch: expected one number of rows for all keys, got {counts}")
        return next(iter(counts.values()), 0)

    def slice(self, start: int, end: int) -> SlicedDataDict:
        """Rows ``start`` to ``end`` (exclusive); tensors are views.

        Raises:
            InvalidArgumentError: they are not all there.
        """
        if not 0 <= start <= end <= self.size:
            raise InvalidArgumentError(f"slice: expected 0 <= start <= end <= {self.size}, got {start} and {end}")
        return self._cut({key: value[start:end] for key, value in self.data.items()})

    def chunk(self, rank: int, chunks: int) -> SlicedDataDict:
        """Part ``rank`` of ``chunks`` equal ones; tensors are copies.

        Raises:
            InvalidArgumentError: the rows cannot be split evenly, or there is no such part.
        """
        if chunks < 1 or self.size % chunks:
            raise InvalidArgumentError(f"chunks: expected a divisor of {self.size} rows, got {chunks}")
        if not 0 <= rank < chunks:
            raise InvalidArgumentError(f"rank: expected 0 to {chunks - 1}, got {rank}")
        rows = self.size // chunks
        part = self.slice(rank * rows, (rank + 1) * rows)
        return part._cut({k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in part.data.items()})

    def get_batch(self, batch_idx: int, batch_size: int | None = None) -> SlicedDataDict:
        """Batch number ``batch_idx``: of ``batch_size`` rows, or as ``shard_by_batch_size`` left them.

        Raises:
            InvalidArgumentError: there is no such batch, or its size is not known.
        """
        if self.elem_counts_per_gb is not None and not 0 <= batch_idx < len(self.elem_counts_per_gb):
            raise InvalidArgumentError(f"batch_idx: expected 0 to {len(self.elem_counts_per_gb) - 1}, got {batch_idx}")
        if batch_size is not None:
            batch = self.slice(batch_size * batch_idx, batch_size * (batch_idx + 1))
        elif self.elem_counts_per_gb is not None:
            start = sum(self.elem_counts_per_gb[:batch_idx])
            batch = self.slice(start, start + self.elem_counts_per_gb[batch_idx])
        else:
            raise InvalidArgumentError(
                "batch_size: expected a number of rows for a batch that is not sharded, got None"
            )
        if self.micro_batch_indices is not None and self.micro_batch_lengths is not None:
            batch.micro_batch_indices = [self.micro_batch_indices[batch_idx]]
            batch.micro_batch_lengths = [self.micro_batch_lengths[batch_idx]]
            batch.elem_counts_per_gb = [batch.size]
        return batch

    def select_indices(self, indices: Sequence[int] | torch.Tensor) -> Self:
        """The rows of these numbers (or where a boolean mask ``[num_rows]`` is true), in this order."""
        index = torch.as_tensor(indices)
        if index.dtype == torch.bool:
            if index.shape != (self.size,):
                raise InvalidArgumentError(f"indices: expected a mask [{self.size}], got {list(index.shape)}")
            index = index.nonzero().flatten()
        chosen = self._like({})
        for key, value in self.data.items():
            chosen[key] = _take(value, index.to(torch.int64))
        return chosen

    def reorder_data(self, reorder_indices: Sequence[int]) -> None:
        """Puts row k to place ``reorder_indices[k]``, in place: undoes the order that ``shard_by_batch_size`` returns.

        Raises:
            InvalidArgumentError: the places are not a permutation of the rows.
        """
        if sorted(reorder_indices) != list(range(self.size)):
            raise InvalidArgumentError(f"reorder_indices: expected each of 0 to {self.size - 1} once")
        inverse = torch.empty(self.size, dtype=torch.int64)
        inverse[torch.tensor(reorder_indices, dtype=torch.int64)] = torch.arange(self.size)
        for key, value in self.data.items():
            self.data[key] = _take(value, inverse)

    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_args: DynamicBatchingArgs | Mapping[str, Any] | None = None,
        sequence_packing_args: SequencePackingArgs | Mapping[str, Any] | None = None,
    ) -> list[SlicedDataDict] | tuple[list[SlicedDataDict], list[int]]:
        """Cuts the rows into chunks of ``batch_size`` and each chunk into ``shards`` parts; shard s has all parts s.

        Args:
            shards: number of shards.
            batch_size: rows of a chunk; None means all in one.
            allow_uneven_shards: parts may differ by one row; only without ``batch_size``.
            dynamic_batching_args: ``DynamicBatching`` as a mapping: rows of like length go to one micro-batch.
            sequence_packing_args: ``SequencePacking`` as a mapping: micro-batches of bounded total length.

        Returns:
            The shards; with one of the last two arguments also the original number of each row of the shards laid end
            to end, which ``reorder_data`` takes.

        Raises:
            InvalidArgumentError: the rows cannot be shared out as asked.
        """
        chunk_rows = self.size if batch_size is None else batch_size
        self._check_sharding(shards, chunk_rows, batch_size, allow_uneven_shards, sequence_packing_args is not None)
        settings = _packing_settings(dynamic_batching_args, sequence_packing_args)
        num_chunks = self.size // chunk_rows if chunk_rows else 1
        plans = [self._plan_chunk(number * chunk_rows, chunk_rows, shards, settings) for number in range(num_chunks)]
        cut: list[SlicedDataDict] = []
        order: list[int] = []
        for shard in range(shards):
            rows = [row + i * chunk_rows for i, plan in enumerate(plans) for row in plan.rows[shard]]
            part = self._cut({key: _take(value, torch.tensor(rows, dtype=torch.int64)) for key, value in self.items()})
            part.elem_counts_per_gb = [len(plan.rows[shard]) for plan in plans]
            if settings is not None:
                part.micro_batch_indices = [plan.micro_batches[shard] for plan in plans]
                part.micro_batch_lengths = [plan.lengths[shard] for plan in plans]
            cut.append(part)
            order += rows
        return cut if settings is None else (cut, order)

    def _check_sharding(self, shards: int, rows: int, batch_size: int | None, uneven: bool, packed: bool) -> None:
        if shards < 1:
            raise InvalidArgumentError(f"shards: expected at least 1, got {shards}")
        if uneven and batch_size is not None:
            raise InvalidArgumentError(f"batch_size: expected None with allow_uneven_shards, got {batch_size}")
        if batch_size is not None and (batch_size < 1 or self.size % batch_size):
            raise InvalidArgumentError(f"batch_size: expected a divisor of {self.size} rows, got {batch_size}")
        if rows % shards and not uneven and not packed:
            raise InvalidArgumentError(f"shards: expected a divisor of {rows} rows of a chunk, got {shards}")

    def _plan_chunk(
        self, start: int, rows: int, shards: int, settings: DynamicBatching | SequencePacking | None
    ) -> Plan:
        if settings is None:
            return batch_packing.plan_even(rows, shards)
        key = settings.input_lengths_key
        if key not in self:
            raise MissingKeyError(f"input_lengths_key: expected a key of the batch, {list(self)}, got {key!r}")
        costs = torch.as_tensor(self[key][start : start + rows]).tolist()
        if isinstance(settings, DynamicBatching):
            return batch_packing.plan_dynamic(costs, shards, settings)
        return batch_packing.plan_packed(costs, shards, settings)

    # --- micro-batches ----------------------------------------------------------------------------------------

    def make_microbatch_iterator(self, microbatch_size: int) -> Iterator[SlicedDataDict]:
        """Micro-batches of equal size.

        Raises:
            InvalidArgumentError: the rows cannot be split evenly.
        """
        if microbatch_size < 1 or self.size % microbatch_size:
            raise InvalidArgumentError(f"microbatch_size: expected a divisor of {self.size}, got {microbatch_size}")
        return (self.slice(start, start + microbatch_size) for start in range(0, self.size, microbatch_size))

    def make_microbatch_iterator_with_dynamic_shapes(self, sequence_dim: int = 1) -> Iterator[SlicedDataDict]:
        """The micro-batches of dynamic batching, each cut to its padded length along ``sequence_dim``."""
        for (start, end), length in zip(*self._micro_batches(), strict=True):
            batch = self.slice(start, end)
            batch.truncate_tensors(sequence_dim, length)
            yield batch

    def make_microbatch_iterator_for_packable_sequences(self) -> Iterator[SlicedDataDict]:
        """The micro-batches of sequence packing."""
        for start, end in self._micro_batches()[0]:
            yield self.slice(start, end)

    def get_microbatch_iterator_dynamic_shapes_len(self) -> int:
        """How many micro-batches ``make_microbatch_iterator_with_dynamic_shapes`` gives."""
        return len(self._micro_batches()[0])

    def get_microbatch_iterator_for_packable_sequences_len(self) -> tuple[int, int]:
        """How many ``make_microbatch_iterator_for_packable_sequences`` gives, and the length of the longest.

        The length is the sum of its rows' padded lengths; 0 without any micro-batch.
        """
        spans, lengths = self._micro_batches()
        return len(spans), max(lengths, default=0)

    def _micro_batches(self) -> tuple[list[list[int]], list[int]]:
        if self.micro_batch_indices is None or self.micro_batch_lengths is None or len(self.micro_batch_indices) != 1:
            raise InvalidArgumentError(
                "micro-batches: expected one chunk of shard_by_batch_size with dynamic batching or sequence packing; "
                "take one with get_batch first"
            )
        return self.micro_batch_indices[0], self.micro_batch_lengths[0]

    # --- changing ---------------------------------------------------------------------------------------------

    def repeat_interleave(self, num_repeats: int | None = None, *, repeats: int | None = None) -> Self:
        """Each row this many times, one after the other, as a new batch; items of lists are deep copies.

        Args:
            num_repeats: how often; ``repeats`` is another name for it.

        Raises:
            InvalidArgumentError: not exactly one of the two is given, or it is negative.
        """
        if (num_repeats is None) == (repeats is None):
            raise InvalidArgumentError("num_repeats: expected it or repeats, one of the two")
        count = num_repeats if num_repeats is not None else repeats
        if count is None or count < 0:
            raise InvalidArgumentError(f"num_repeats: expected at least 0, got {count}")
        repeated = self._like({})
        for key, value in self.data.items():
            if isinstance(value, torch.Tensor):
                repeated[key] = value.repeat_interleave(count, dim=0)
            else:
                repeated[key] = [copy.deepcopy(item) for item in value for _ in range(count)]
        return repeated

    def truncate_tensors(self, dim: int, truncated_len: int) -> None:
        """Cuts every tensor that has dimension ``dim`` to at most this length there, in place."""
        for key, value in self.data.items():
            if isinstance(value, torch.Tensor) and value.ndim > dim:
                self.data[key] = value.narrow(dim, 0, min(truncated_len, value.shape[dim]))

    def padding_mask(self, lengths_key: str, length: int) -> torch.Tensor:
        """Bool ``[num_rows, length]``: true where a row of the length under ``lengths_key`` has a value."""
        lengths = torch.as_tensor(self.data[lengths_key])
        return torch.arange(length, device=lengths.device)[None, :] < lengths[:, None]

    def to(self, device: str | torch.device) -> Self:
        """Moves the tensors to a device, in place; returns itself."""
        self.data.update(self._on(device))
        return self

    def to_device(self, device: str | torch.device) -> Self:
        """A new batch with the tensors on a device; this one stays as it is."""
        return self._like({**self.data, **self._on(device)})

    def get_dict(self) -> dict[str, Value]:
        """The plain dictionary inside."""
        return self.data

    def _on(self, device: str | torch.device) -> dict[str, torch.Tensor]:
        return {key: value.to(device) for key, value in self.data.items() if isinstance(value, torch.Tensor)}

    def _like(self, data: Mapping[str, Value]) -> Self:
        return type(self)(data, metadata=self.metadata, pad_values=self.pad_values)

    def _cut(self, data: Mapping[str, Value]) -> SlicedDataDict:
        return SlicedDataDict(data, metadata=self.metadata, pad_values=self.pad_values)


class SlicedDataDict(BatchedDataDict):
    """Some rows of a batch."""


def _has_rows(batch: Mapping[str, Value]) -> bool:
    """Whether anything in it has rows; what has none and no number of them either counts as one that has."""
    return any(not isinstance(value, (torch.Tensor, list)) or _num_rows(key, value) for key, value in batch.items())


def _num_rows(key: str, value: Value) -> int:
    if isinstance(value, torch.Tensor) and value.ndim:
        return int(value.shape[0])
    if isinstance(value, list):
        return len(value)
    raise InvalidArgumentError(f"{key}: expected a tensor with rows or a list, got {value!r}")


def _take(value: Value, index: torch.Tensor) -> Value:
    if isinstance(value, torch.Tensor):
        return value.index_select(0, index.to(value.device))
    return [value[row] for row in index.tolist()]


def _join(key: str, values: Sequence[Value], pad_value: float) -> Value:
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    if not all(isinstance(value, torch.Tensor) for value in values):
        raise InvalidArgumentError(f"{key}: expected tensors or lists, got {[type(v).__name__ for v in values]}")
    shapes = [tuple(value.shape) for value in values]
    if len({(len(shape), shape[2:]) for shape in shapes}) > 1 or not shapes[0]:
        raise InvalidArgumentError(f"{key}: expected rows that differ in dimension 1 at the most, got shapes {shapes}")
    if len(shapes[0]) == 1:
        return torch.cat(list(values))
    longest = max(shape[1] for shape in shapes)
    padded = [
        value.new_full((shape[0], longest, *shape[2:]), pad_value) for value, shape in zip(values, shapes, strict=True)
    ]
    for target, value in zip(padded, values, strict=True):
        target[:, : value.shape[1]] = value
    return torch.cat(padded)


@dataclass(frozen=True)
class _Outline:
    """A tensor of another rank, without its values."""

    dtype: torch.dtype
    shape: torch.Size

    def to_empty(self, device: str | torch.device) -> torch.Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def _gather_tensors(
    value: torch.Tensor | None,
    key: str,
    outlines: Sequence[Mapping[str, Value]],
    device: torch.device,
    group: torch.distributed.ProcessGroup | None,
) -> list[torch.Tensor]:
    """The tensors of all ranks. They travel flat and filled up to the largest: collectives want equal sizes."""
    own = [outline.get(key) for outline in outlines]
    shapes = [one.shape if isinstance(one, _Outline) else torch.Size([0]) for one in own]
    dtypes = {one.dtype for one in own if isinstance(one, _Outline) and one.shape.numel()}
    if len(dtypes) > 1:
        raise InvalidArgumentError(f"{key}: expected one dtype on all ranks, got {own}")
    if not dtypes:
        return [one.to_empty(device) if isinstance(one, _Outline) else torch.empty(0, device=device) for one in own]
    flat = torch.zeros(max(shape.numel() for shape in shapes), dtype=dtypes.pop(), device=device)
    if value is not None and value.numel():
        flat[: value.numel()] = value.flatten()
    received = [torch.empty_like(flat) for _ in outlines]
    torch.distributed.all_gather(received, flat, group)
    return [tensor[: shape.numel()].reshape(shape) for tensor, shape in zip(received, shapes, strict=True)]


def _device_of(group: torch.distributed.ProcessGroup | None) -> torch.device:
    """Where the tensors of a rank lie that has none to show it."""
    on_gpu = torch.distributed.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _packing_settings(
    dynamic: Mapping[str, Any] | None, packing: Mapping[str, Any] | None
) -> DynamicBatching | SequencePacking | None:
    if dynamic is not None and packing is not None:
        raise InvalidArgumentError("sequence_packing_args: expected None with dynamic_batching_args")
    settings: DynamicBatching | SequencePacking | None = None
    if dynamic is not None:
        settings = batch_packing.parse(DynamicBatching, "dynamic_batching_args", dynamic)
    elif packing is not None:
        settings = batch_packing.parse(SequencePacking, "sequence_packing_args", packing)
    return settings


__all__ = ["BatchedDataDict", "DynamicBatchingArgs", "SequencePackingArgs", "SlicedDataDict"]
