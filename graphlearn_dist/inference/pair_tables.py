"""Scores of pairs that a table names by original ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidArgumentError, StorageError
from ..typing import NodeType
from .pairs import score_pairs
from .results import Results

PAIR_FORMATS = (".parquet", ".csv")


def score_pair_table(
    results: Results,
    pairs: str | Path,
    out: str | Path,
    *,
    directory: str | Path,
    node_types: tuple[NodeType | None, NodeType | None] = (None, None),
    columns: tuple[str, str] | None = None,
) -> None:
    """Scores pairs of nodes by the inner product of their rows, and writes them with their ids and ``score``, float32.

    Args:
        results: with the rows of both ends.
        pairs: a Parquet file, or CSV with a header, with the ids of the tables that the partitions were built from;
            node ids where they were not built from tables.
        out: the Parquet file to be written, whose rows are in the order of the pairs.
        directory: of the partitions.
        node_types: of sources and targets.
        columns: that have the ids of sources and targets; the first two unless given.

    Raises:
        InvalidArgumentError: the file is of another format, or has no such columns.
        StorageError: it cannot be read.
        UnknownIdError: an id is no node's.
        MissingLibraryError: the extra ``tables`` is not installed.
    """
    from ..tables import IdMap

    import pyarrow as pa  # isort: skip  # after the import that says what is missing
    import pyarrow.parquet as pq  # isort: skip

    path = Path(pairs)
    maps = [IdMap(directory, node_type) for node_type in node_types]
    names = columns or _first_columns(path)
    if names[0] == names[1]:
        raise InvalidArgumentError(f"columns: expected one for sources and another one for targets, got {names}")
    types: dict[str, Any] = dict(zip(names, (each.id_type for each in maps), strict=True))
    ends: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    row = 0
    for batch in _batches(path, types):
        for end, ids, name, column in zip(ends, maps, names, batch.columns, strict=True):
            try:
                end.append(ids.node_ids(column))
            except InvalidArgumentError as error:
                raise type(error)(f"pairs: column {name!r} of {path}, rows from {row} on: {error}") from error
        row += batch.num_rows
    nothing = torch.empty(0, dtype=torch.int64)
    found = score_pairs(results, torch.stack([torch.cat([nothing, *end]) for end in ends]), node_types=node_types)
    schema = pa.schema(list({**types, "score": pa.float32()}.items()))
    row = 0
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in _batches(path, types):
            scores = pa.array(found[row : row + batch.num_rows].numpy())
            original = [column.cast(dtype) for column, dtype in zip(batch.columns, types.values(), strict=True)]
            writer.write_table(pa.Table.from_arrays([*original, scores], schema=schema))
            row += batch.num_rows


def _open(path: Path, types: dict[str, Any]) -> Any:
    """What gives batches of these columns (of CSV of these types), or of all, and has a ``schema``."""
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    if path.suffix not in PAIR_FORMATS:
        raise InvalidArgumentError(f"pairs: expected a file of {', '.join(('.npy', *PAIR_FORMATS))}, got {path}")
    if path.suffix == ".csv":
        return csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=types, include_columns=list(types)))
    return pq.ParquetFile(path)


def _first_columns(path: Path) -> tuple[str, str]:
    try:
        opened = _open(path, {})
    except (OSError, ValueError) as error:
        raise StorageError(f"pairs: {path}: cannot be read ({error})") from error
    names = (opened.schema_arrow if path.suffix == ".parquet" else opened.schema).names
    if len(names) < 2:
        raise InvalidArgumentError(f"pairs: expected two columns in {path}, got {names}")
    return names[0], names[1]


def _batches(path: Path, types: dict[str, Any]) -> Iterator[Any]:
    """Record batches of the two columns, in their order."""
    try:
        opened = _open(path, types)
        if path.suffix == ".csv":
            yield from opened
            return
        if missing := set(types) - set(opened.schema_arrow.names):
            raise InvalidArgumentError(f"pairs: expected columns {list(types)} in {path}, found no {sorted(missing)}")
        for batch in opened.iter_batches(columns=list(types)):
            yield batch.select(list(types))
    except InvalidArgumentError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise StorageError(f"pairs: {path}: cannot be read ({error})") from error
