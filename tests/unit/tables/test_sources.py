"""Tables of every format, from anywhere, give the same partitions."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.core import to_tensor
from graphlearn_dist.errors import InvalidArgumentError, TableError, UnknownIdError
from graphlearn_dist.partition import RangePartitioner, load_partition_layout
from graphlearn_dist.tables import IdMap, TablesConfig, sources
from graphlearn_dist.tables.buckets import BucketWriter
from graphlearn_dist.tables.columns import native_ids
from graphlearn_dist.tables.config import SourceSpec
from graphlearn_dist.tables.sources import Table

from .shop import AMPLE, SCARCE, assert_same_graph, make, meta_of

NUM_NODES, NUM_EDGES = 20, 120


@pytest.fixture
def tables() -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(1)
    nodes = pa.table({"id": [f"n{i:02}" for i in range(NUM_NODES)], "f": random.random(NUM_NODES)})
    ends = random.integers(0, NUM_NODES, (2, NUM_EDGES))
    edges = pa.table(
        {"a": [f"n{i:02}" for i in ends[0]], "b": [f"n{i:02}" for i in ends[1]], "w": random.random(NUM_EDGES)}
    )
    return nodes, edges


@pytest.fixture
def reference(tables: tuple[pa.Table, pa.Table], tmp_path: Path) -> Path:
    nodes, edges = tables
    ends = torch.tensor([[int(name[1:]) for name in edges[column].to_pylist()] for column in "ab"])
    return RangePartitioner(
        tmp_path / "reference",
        2,
        NUM_NODES,
        ends,
        node_feat=torch.tensor(nodes["f"].to_pylist(), dtype=torch.float64).float()[:, None],
        edge_weights=torch.tensor(edges["w"].to_pylist(), dtype=torch.float64),
        edge_assign_strategy="by_dst",
    ).partition()


def config(nodes: dict[str, Any], edges: dict[str, Any]) -> dict[str, Any]:
    return {
        "nodes": [{"node_id_col": "id", "features": [{"feature_col": "f"}], **nodes}],
        "edges": [{"source_id_col": "a", "dest_id_col": "b", "weight_col": "w", **edges}],
    }


def write(table: pa.Table, path: Path, form: str) -> None:
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "csv":
        pyarrow.csv.write_csv(table, path)
    elif form == "orc":
        pyarrow.orc.write_table(table, path)
    else:
        opened = pa.ipc.new_file if form == "arrow" else pa.ipc.new_stream
        with opened(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)


@pytest.mark.parametrize("form", ["parquet", "csv", "orc", "arrow", "stream"])
def test_formats(form: str, tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path) -> None:
    write(tables[0], tmp_path / "nodes", form)
    write(tables[1].slice(0, 50), tmp_path / "edges-0", form)
    write(tables[1].slice(50), tmp_path / "edges-1", form)
    name = "arrow" if form == "stream" else form
    given = config(
        {"files": f"{tmp_path}/nodes", "format": name},
        {"files": f"{tmp_path}/edges-*", "format": {"name": name}},
    )
    assert_same_graph(make(given, tmp_path / "built", kind="range"), reference)


def test_texts_as_dictionaries_and_views(tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path) -> None:
    nodes, edges = tables
    pq.write_table(nodes.set_column(0, "id", nodes["id"].cast(pa.large_string())), tmp_path / "n.parquet")
    pq.write_table(edges.set_column(0, "a", edges["a"].dictionary_encode()), tmp_path / "e.parquet")
    given = config({"files": f"{tmp_path}/n.parquet"}, {"files": f"{tmp_path}/e.parquet"})
    assert_same_graph(make(given, tmp_path / "built", kind="range"), reference)


def test_queries(tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path) -> None:
    """A query is asked in the folder of the config, and its rows keep the order that it gives them."""
    pq.write_table(tables[0], tmp_path / "n.parquet")
    numbered = tables[1].append_column("row", pa.array(np.arange(NUM_EDGES)))
    pq.write_table(numbered.take(np.random.default_rng(0).permutation(NUM_EDGES)), tmp_path / "e.parquet")
    given = config(
        {"query": "SELECT * FROM 'n.parquet' -- all"}, {"query": "SELECT a, b, w FROM 'e.parquet' ORDER BY row;"}
    )
    (tmp_path / "graph.json").write_text(json.dumps(given))
    assert_same_graph(make(tmp_path / "graph.json", tmp_path / "built", kind="range"), reference)
    given["edges"][0]["query"] = "SELECT nothing FROM 'e.parquet'"
    (tmp_path / "graph.json").write_text(json.dumps(given))
    with pytest.raises(TableError, match=r"edges: query: .*nothing"):
        make(tmp_path / "graph.json", tmp_path / "other")


def test_a_database_that_changes_before_a_build_is_resumed(
    tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database lies where the config does, and is known by size and time of change."""
    with duckdb.connect(str(tmp_path / "g.db")) as connection:
        for name, table in zip(("n", "e"), tables, strict=True):
            connection.register("given", table)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
    sources = [{"query": f"SELECT * FROM {name}", "database": "g.db"} for name in ("n", "e")]
    (tmp_path / "graph.json").write_text(json.dumps(config(*sources)))
    assert_same_graph(make(tmp_path / "graph.json", tmp_path / "built", kind="range"), reference)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(BucketWriter, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path / "graph.json", tmp_path / "left", kind="range")
    with duckdb.connect(str(tmp_path / "g.db")) as connection:
        connection.execute("DELETE FROM n")
        connection.execute("CHECKPOINT")
    with pytest.raises(InvalidArgumentError, match=r"resume: .* but files differs"):
        make(tmp_path / "graph.json", tmp_path / "left", kind="range", resume=True)
    sources[0]["database"] = "none.db"
    (tmp_path / "graph.json").write_text(json.dumps(config(*sources)))
    with pytest.raises(TableError, match=r"nodes: query: .*none\.db"):
        make(tmp_path / "graph.json", tmp_path / "other")


def test_remote_files(tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    system = fsspec.filesystem("memory")
    for name, table in (("n", tables[0]), ("e-0", tables[1].slice(0, 9)), ("e-1", tables[1].slice(9))):
        with system.open(f"/gld-tables/{name}.parquet", "wb") as file:
            pq.write_table(table, file)
    given = config({"files": "memory://gld-tables/n.parquet"}, {"files": "memory://gld-tables/e-*.parquet"})
    assert_same_graph(make(given, tmp_path / "built", kind="range"), reference)
    given["edges"][0]["files"] = "memory://gld-tables/folder"
    system.pipe("/gld-tables/folder/_SUCCESS", b"")
    packed = io.BytesIO()
    pyarrow.csv.write_csv(tables[1], packed)
    system.pipe("/gld-tables/folder/e.csv.gz", gzip.compress(packed.getvalue()))
    given["edges"][0]["format"] = "csv"
    assert_same_graph(make(given, tmp_path / "packed", kind="range"), reference)


def test_folder_of_files_and_marks(tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path) -> None:
    """What Spark leaves beside its parts is no table."""
    for name, table in (("n", tables[0]), ("e", tables[1])):
        (tmp_path / name).mkdir()
        pq.write_table(table, tmp_path / name / "part-0.parquet")
        (tmp_path / name / "_SUCCESS").touch()
        (tmp_path / name / ".part-0.parquet.crc").touch()
    given = config({"files": f"{tmp_path}/n"}, {"files": f"{tmp_path}/e"})
    assert_same_graph(make(given, tmp_path / "built", kind="range"), reference)


def test_names_with_brackets(tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path) -> None:
    """A file of that name is meant, also where it would be a pattern; the folder of the config is none."""
    root = tmp_path / "[1] a*"
    root.mkdir()
    pq.write_table(tables[0], root / "n.parquet")
    pq.write_table(tables[1], root / "e[1].parquet")
    pq.write_table(tables[1].slice(0, 1), root / "e1.parquet")
    given = config({"files": "n.par*"}, {"files": "e[1].parquet"})
    (root / "graph.json").write_text(json.dumps(given))
    assert_same_graph(make(root / "graph.json", tmp_path / "built", kind="range"), reference)


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "e.parquet")
    edges = {"source_id_col": "a", "dest_id_col": "b", "files": str(tmp_path / "e.parquet")}
    with pytest.raises(InvalidArgumentError, match=r"files: expected files for .*, found .*e\.parquet, which is none"):
        make({"edges": [edges]}, tmp_path / "g")


def test_folders_that_duckdb_does_not_search(tables: tuple[pa.Table, pa.Table], tmp_path: Path) -> None:
    root = tmp_path / "a,b"
    root.mkdir()
    pq.write_table(tables[1], root / "e.parquet")
    edges = {"source_id_col": "a", "dest_id_col": "b", "query": "SELECT * FROM 'e.parquet'"}
    (root / "graph.json").write_text(json.dumps({"edges": [edges]}))
    with pytest.raises(TableError, match=r"edges: query: .*e\.parquet.*a,b, which has a comma or a backslash"):
        make(root / "graph.json", tmp_path / "g")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["e.parquet", "memory://e.parquet"], "files: expected all in one file system"),
        ("nosuch://e.parquet", "files: nosuch://e.parquet: Protocol not known"),
        ("memory://gld-tables/none.parquet", "none.parquet: cannot be read"),
    ],
)
def test_addresses_of_nothing(tmp_path: Path, files: Any, words: str) -> None:
    edges = {"source_id_col": "a", "dest_id_col": "b", "files": files, "format": "parquet"}
    with pytest.raises((InvalidArgumentError, TableError), match=words):
        make({"edges": [edges]}, tmp_path / "g")


def test_yaml_file_with_relative_paths(tables: tuple[pa.Table, pa.Table], reference: Path, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "data").mkdir()
    pq.write_table(tables[0], tmp_path / "data" / "n.parquet")
    pq.write_table(tables[1], tmp_path / "data" / "e.parquet")
    (tmp_path / "graph.yaml").write_text(
        """
version: gconstruct-v0.1
nodes:
- node_id_col: id
  files: data/n.parquet
  features:
  - feature_col: [f]
edges:
- source_id_col: a
  dest_id_col: b
  weight_col: w
  files: [data/e.parquet]
  format: {name: parquet}
"""
    )
    assert_same_graph(make(tmp_path / "graph.yaml", tmp_path / "built", kind="range"), reference)
    assert TablesConfig.load(tmp_path / "graph.yaml").edges[0].weight_column == "w"


@pytest.mark.parametrize("kind", ["text", "int"])
def test_id_tables_find_what_a_dictionary_finds(kind: str) -> None:
    random = np.random.default_rng(4)
    known = np.unique(random.integers(-(2**62), 2**62, 3000))
    asked = np.concatenate([random.choice(known, 2000), random.integers(-(2**62), 2**62, 500)])
    places = {value: i for i, value in enumerate(known.tolist())}
    expected = [places.get(value, -1) for value in asked.tolist()]
    if kind == "int":
        table, given = _C.IdTable(native_ids(known)), native_ids(asked)
    else:
        texts = pa.array(
            [str(value) * (value % 3) for value in range(-1, 0)] + [str(v) for v in known], pa.large_string()
        )
        table, given = _C.IdTable(native_ids(texts[1:])), native_ids(pa.array(map(str, asked), pa.large_string()))
    assert to_tensor(table.find(given, _C.ThreadPool(2))).tolist() == expected


def unmixed(value: int) -> int:
    """What the core's ``mix64`` turns into ``value``."""
    mask = 2**64 - 1
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        found = value
        for _ in range(64 // shift):
            found = value ^ (found >> shift)
        value = found * pow(factor, -1, 2**64) & mask
    return value


def test_ids_cannot_be_made_to_share_a_slot() -> None:
    """Ids whose plain hashes are 0, 1, 2, ...: in a table without a salt each look-up would pass all others."""
    count = 200_000
    made = np.array([unmixed(value) - 0x9E3779B97F4A7C15 for value in range(count)], dtype=object) % 2**64
    ids = native_ids(made.astype(np.uint64).view(np.int64))
    asked = np.random.default_rng(1).permutation(count)
    given = native_ids(made[asked].astype(np.uint64).view(np.int64))
    assert np.array_equal(to_tensor(_C.IdTable(ids).find(given, _C.ThreadPool(2))).numpy(), asked)


def test_unknown_original_ids(tables: tuple[pa.Table, pa.Table], tmp_path: Path) -> None:
    pq.write_table(tables[0], tmp_path / "n.parquet")
    pq.write_table(tables[1], tmp_path / "e.parquet")
    given = config({"files": f"{tmp_path}/n.parquet"}, {"files": f"{tmp_path}/e.parquet"})
    ids = IdMap(make(given, tmp_path / "built"))
    with pytest.raises(UnknownIdError, match=r"original_ids\[1\]: no node has the id 'nobody'"):
        ids.node_ids(["n03", "nobody"])
    with pytest.raises(UnknownIdError, match="node_ids: expected 0 <= id < 20"):
        ids.original_ids(torch.tensor([20]))
    with pytest.raises(InvalidArgumentError, match="node_type: expected one of"):
        IdMap(tmp_path / "built", "user")
    with pytest.raises(InvalidArgumentError, match="original_ids: expected large_string, got int64"):
        ids.node_ids([3])


@pytest.mark.parametrize("working", [AMPLE, SCARCE])
def test_edges_of_nothing_but_looked_up_ids(tmp_path: Path, working: int) -> None:
    """Rows that name no node are dropped, and counted, though nothing of the table is read again."""
    random = np.random.default_rng(1)
    ends = random.integers(0, NUM_NODES, (2, NUM_EDGES))
    names = np.array([f"n{i:02}" for i in range(NUM_NODES)])
    source = names[ends[0]].astype(object)
    source[[3, 50]] = "nobody", None
    pq.write_table(pa.table({"id": names}), tmp_path / "n.parquet")
    pq.write_table(pa.table({"a": pa.array(source), "b": names[ends[1]]}), tmp_path / "e.parquet", row_group_size=11)
    given = {
        "nodes": [{"node_id_col": "id", "files": f"{tmp_path}/n.parquet"}],
        "edges": [{"source_id_col": "a", "dest_id_col": "b", "files": f"{tmp_path}/e.parquet"}],
    }
    given["edges"][0]["drop"] = ["unknown_ids", "nulls"]
    kept = torch.from_numpy(np.delete(ends, [3, 50], axis=1))
    reference = RangePartitioner(tmp_path / "r", 2, NUM_NODES, kept, edge_assign_strategy="by_dst").partition()
    built = make(given, tmp_path / "built", kind="range", working=working)
    assert_same_graph(built, reference)
    assert meta_of(built)["tables"]["edges"][0]["dropped"] == {"unknown_ids": 1, "nulls": 1}


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_without_a_value_have_the_type_of_the_others(tmp_path: Path, form: str) -> None:
    """A part with a header alone says of no column what its type is, and neither does one of nulls."""
    rows: list[dict[str, list[Any]]] = [{"a": [], "b": []}, {"a": ["x", "y"], "b": ["y", "x"]}, {"a": [], "b": []}]
    for i, columns in enumerate(rows):
        table = pa.table(columns) if columns["a"] else pa.table({name: pa.nulls(0) for name in columns})
        if form == "csv":
            pyarrow.csv.write_csv(table, tmp_path / f"{i}.csv")
        else:
            pq.write_table(table, tmp_path / f"{i}.parquet")
    config = {"edges": [{"source_id_col": "a", "dest_id_col": "b", "files": f"{tmp_path}/*.{form}"}]}
    built = make(config, tmp_path / "graph")
    assert IdMap(built).original_ids(torch.arange(2)).to_pylist() == ["x", "y"]
    assert meta_of(built)["edges"][0]["count"] == 2


def test_words_of_csv_that_mean_nothing_elsewhere_are_ids(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("a,b\nNA,null\nnull,NULL\n")
    built = make({"edges": [{"source_id_col": "a", "dest_id_col": "b", "files": f"{tmp_path}/e.csv"}]}, tmp_path / "g")
    assert IdMap(built).original_ids(torch.arange(3)).to_pylist() == ["NA", "NULL", "null"]


def test_values_of_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line's end in quotes is no row's end, wherever a block of the file ends."""
    monkeypatch.setattr(sources, "_CSV_BLOCK", 100)
    names = [f"n{i}\n{i % 7}" for i in range(90)]
    rows = "".join(f'"{names[i]}";"{names[(7 * i) % 90]}"\n' for i in range(90))
    (tmp_path / "e.csv").write_text("\ufeffa;b\n" + rows)
    edges = {"source_id_col": "a", "dest_id_col": "b", "files": f"{tmp_path}/e.csv"}
    built = make({"edges": [edges | {"format": {"name": "csv", "separator": ";"}}]}, tmp_path / "g")
    assert IdMap(built).original_ids(torch.arange(90)).to_pylist() == sorted(names)


def test_columns_of_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_CSV_BLOCK", 100)
    numbers = [*map(str, range(99)), "1.5"]  # what is whole first may have a fraction later
    (tmp_path / "n.tsv").write_text("id\ty\n" + "".join(f"{i}\t{y}\n" for i, y in enumerate(numbers)))
    (tmp_path / "e.csv").write_text("\ufeffa,b\n0,99\n")
    given = {
        "nodes": [
            {
                "node_id_col": "id",
                "files": f"{tmp_path}/n.tsv",
                "labels": {"label_col": "y", "task_type": "regression"},
            }
        ],
        "edges": [{"source_id_col": "a", "dest_id_col": "b", "files": f"{tmp_path}/e.csv"}],
    }
    assert load_partition_layout(make(given, tmp_path / "g", parts=1)).open_partition(0).node_labels[None][99] == 1.5
    given["edges"][0]["format"] = {"name": "csv", "types": {"A": "string"}}
    with pytest.raises(InvalidArgumentError, match=r"types: expected columns of .*e.csv, got 'A'"):
        make(given, tmp_path / "h")
    (tmp_path / "f.csv").write_text("\ufeffa,b\nx,99\n")
    given["edges"][0] |= {"format": "csv", "files": [f"{tmp_path}/e.csv", f"{tmp_path}/f.csv"]}
    with pytest.raises(TableError, match=r"f.csv, row 0, column 'a'"):
        make(given, tmp_path / "h")


def test_what_is_not_installed_is_named() -> None:
    command = ["build", "graph.json", "--out", "out", "--parts", "1"]
    script = (
        f"import sys; sys.modules['pyarrow'] = None; from graphlearn_dist.cli import main; sys.exit(main({command}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pyarrow cannot be imported" in done.stderr
    assert "pip install 'graphlearn_dist[tables]'" in done.stderr


@pytest.mark.parametrize("length", [-1, 256])
def test_chunks_of_long_lists_that_are_short_on_disk(tmp_path: Path, length: int) -> None:
    """A list of the same number is a few bytes in a file, and a kilobyte in memory."""
    lists = pa.array([[0.5] * 256] * 30_000, pa.list_(pa.float32(), length))
    pq.write_table(pa.table({"x": lists}), tmp_path / "n.parquet", row_group_size=5000)
    assert (tmp_path / "n.parquet").stat().st_size < 1 << 20
    table = Table(SourceSpec((str(tmp_path / "n.parquet"),)), tmp_path, ["x"], chunk_bytes=2 << 20)
    chunks = list(table.chunks())
    assert sum(chunk.num_rows for chunk in chunks) == 30_000
    assert max(chunk.columns["x"].get_total_buffer_size() for chunk in chunks) <= 3 << 20
