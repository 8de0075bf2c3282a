"""Bad input ends in one error that names its place, or is counted and dropped where the config says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from graphlearn_dist import cli
from graphlearn_dist.cli import main
from graphlearn_dist.errors import (
    GraphLearnError,
    InvalidArgumentError,
    MissingLibraryError,
    StorageError,
    TableError,
)
from graphlearn_dist.partition import load_partition_layout
from graphlearn_dist.tables import IdMap, StageProgress, TablesConfig, build

from .shop import BUYS, Shop, make, meta_of

GROUP = 10  # rows of a row group, so that places are told apart


def change(path: Path, column: str, row: int, value: Any) -> None:
    """Puts a value (None: a null) into a table."""
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[row] = value
    at = table.schema.get_field_index(column)
    pq.write_table(
        table.set_column(at, column, pa.array(values, table.schema.field(at).type)), path, row_group_size=GROUP
    )


def shop_tables(folder: Path) -> tuple[Shop, dict[str, Any]]:
    shop = Shop.make()
    shop.write(folder, files=2, group=GROUP)
    return shop, shop.config(folder)


USERS, ITEMS, EDGES = "users-001.parquet", "items-001.parquet", "buys-001.parquet"
BAD: list[tuple[str, str, Any, str, str]] = [  # file, column, value, reason, words of the message
    (EDGES, "user", "nobody", "unknown_ids", "no node has the id 'nobody'"),
    (EDGES, "item", 1, "unknown_ids", "no node has the id 1"),
    (EDGES, "item", None, "nulls", "expected an id, got null"),
    (EDGES, "amount", float("nan"), "nonfinite", "expected a finite weight, got nan"),
    (EDGES, "amount", None, "nulls", "expected a weight, got null"),
    (EDGES, "day", None, "nulls", "expected a time, got null"),
    (EDGES, "stars", float("inf"), "nonfinite", "expected finite numbers, got inf"),
]


@pytest.mark.parametrize(("file", "column", "value", "reason", "words"), BAD)
def test_bad_edge_is_named_or_dropped(
    tmp_path: Path, file: str, column: str, value: Any, reason: str, words: str
) -> None:
    shop, config = shop_tables(tmp_path / "t")
    change(tmp_path / "t" / file, column, 23, value)
    with pytest.raises(TableError) as raised:
        make(config, tmp_path / "g")
    place = f"{tmp_path}/t/{file}, row group 2, row 3, column '{column}': {words}"
    assert str(raised.value).startswith(place)
    assert not (tmp_path / "g").exists()
    config["edges"][0]["drop"] = [reason]
    out = make(config, tmp_path / "g")
    edges = meta_of(out)["tables"]["edges"]
    assert edges[0]["dropped"] == {reason: 1}
    assert load_partition_layout(out).edges[BUYS].count == len(shop.source) - 1


@pytest.mark.parametrize(
    ("file", "column", "value", "reason", "words"),
    [
        (USERS, "name", None, "nulls", "expected an id, got null"),
        (USERS, "age", None, "nulls", "expected numbers, got null"),
        (USERS, "taste", [1.0, float("nan"), 2.0], "nonfinite", "expected finite numbers, got nan"),
        (ITEMS, "price", float("-inf"), "nonfinite", "expected finite numbers, got -inf"),
    ],
)
def test_bad_node_is_named_or_dropped_with_its_edges(
    tmp_path: Path, file: str, column: str, value: Any, reason: str, words: str
) -> None:
    shop, config = shop_tables(tmp_path / "t")
    change(tmp_path / "t" / file, column, 12, value)
    with pytest.raises(TableError) as raised:
        make(config, tmp_path / "g")
    assert str(raised.value).startswith(f"{tmp_path}/t/{file}, row group 1, row 2, column '{column}': {words}")
    config["nodes"][0 if file == USERS else 1]["drop"] = [reason]
    config["edges"][0]["drop"] = ["unknown_ids"]
    out = make(config, tmp_path / "g")
    row = 12 + len(shop.users["name"]) // 2 if file == USERS else 12 + len(shop.items["code"]) // 2
    lost = int(((shop.source if file == USERS else shop.target) == row).sum())
    layout = load_partition_layout(out)
    assert layout.edges[BUYS].count == len(shop.source) - lost
    assert layout.nodes["user" if file == USERS else "item"].count == (52 if file == USERS else 30)


@pytest.mark.parametrize("column", ["name", "code"])
def test_id_that_comes_twice(tmp_path: Path, column: str) -> None:
    shop, config = shop_tables(tmp_path / "t")
    kind, number = ("users", 0) if column == "name" else ("items", 1)
    first = getattr(shop, kind)[column][4]
    table = pq.read_table(tmp_path / "t" / f"{kind}-000.parquet").slice(4, 1)
    changed = table.set_column(1, table.schema.field(1), pa.array([77], table.schema.field(1).type))
    pq.write_table(changed, tmp_path / "t" / f"{kind}-002.parquet")
    with pytest.raises(TableError) as raised:
        make(config, tmp_path / "g")
    assert str(raised.value).startswith(
        f"{tmp_path}/t/{kind}-002.parquet, row group 0, row 0, column '{column}': expected each id once, got "
    )
    config["nodes"][number]["drop"] = ["double_ids"]
    layout = load_partition_layout(out := make(config, tmp_path / "g"))
    node_type = kind[:-1]
    assert meta_of(out)["tables"]["nodes"][number]["dropped"] == {"double_ids": 1}
    node = int(IdMap(out, node_type).node_ids([str(first) if column == "name" else int(first)])[0])
    rows = torch.cat([layout.nodes[node_type].book.local_ids(p) for p in range(2)])
    parts = [layout.open_partition(p) for p in range(2)]
    values = torch.cat([p.node_feats["user"] if kind == "users" else p.node_attrs["item"]["price"] for p in parts])
    kept = float(values[rows == node][0, 0])
    assert kept == pytest.approx(float(getattr(shop, kind)["age" if kind == "users" else "price"][4]))  # the first


def test_dense_ids_that_come_twice(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0, 2, 1, 2]}), tmp_path / "n.parquet")
    pq.write_table(pa.table({"a": [0, 1], "b": [2, 0]}), tmp_path / "e.parquet")
    config = {
        "nodes": [{"node_id_col": "id", "files": f"{tmp_path}/n.parquet"}],
        "edges": [{"source_id_col": "a", "dest_id_col": "b", "files": f"{tmp_path}/e.parquet"}],
    }
    with pytest.raises(TableError, match=r"n.parquet, row group 0, row 3, column 'id': expected each id once, got .*2"):
        make(config, tmp_path / "g")
    config["nodes"][0]["drop"] = "double_ids"
    assert load_partition_layout(make(config, tmp_path / "g")).nodes[None].count == 3


def rewrite(path: Path, column: str, dtype: Any) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, column, table[column].cast(dtype)), path)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


FILES: list[tuple[Callable[[Path], None], str]] = [
    (lambda folder: truncate(folder / EDGES), f"{EDGES}: cannot be read"),
    (lambda folder: (folder / USERS).write_bytes(b""), f"{USERS}: cannot be read"),
    (lambda folder: (folder / USERS).write_bytes(b"PAR1 no table PAR1"), f"{USERS}: cannot be read"),
    (lambda folder: rewrite(folder / EDGES, "day", pa.int32()), f"{EDGES}, column 'day': expected int64, as in"),
    (lambda folder: rewrite(folder / ITEMS, "code", pa.string()), f"{ITEMS}, column 'code': expected int64, as in"),
    (lambda folder: [p.unlink() for p in folder.glob("buys*")] and None, "files: expected files for"),
]


@pytest.mark.parametrize("number", range(len(FILES)))
def test_file_that_cannot_be_used(tmp_path: Path, number: int) -> None:
    _, config = shop_tables(tmp_path / "t")
    spoil, words = FILES[number]
    spoil(tmp_path / "t")
    with pytest.raises((TableError, InvalidArgumentError)) as raised:
        make(config, tmp_path / "g")
    assert words in str(raised.value)
    assert not (tmp_path / "g").exists()


@pytest.mark.parametrize("column", ["user", "label"])
def test_text_that_is_no_utf8(tmp_path: Path, column: str) -> None:
    texts = pa.array([b"ann", b"bob", b"c\xff", b"dan"]).view(pa.string())
    good = pa.array(["ann", "bob", "cid", "dan"])
    nodes = {"id": good, "label": texts if column == "label" else good}
    pq.write_table(pa.table(nodes), tmp_path / "n.parquet", row_group_size=2)
    ends = {"user": texts if column == "user" else good, "other": good}
    pq.write_table(pa.table(ends), tmp_path / "e.parquet", row_group_size=2)
    config = {
        "nodes": [{"node_id_col": "id", "files": f"{tmp_path}/n.parquet", "labels": {"label_col": "label"}}],
        "edges": [{"source_id_col": "user", "dest_id_col": "other", "files": f"{tmp_path}/e.parquet"}],
    }
    with pytest.raises(TableError, match=f"parquet, row group 1, row 0, column '{column}': expected UTF-8"):
        make(config, tmp_path / "g")


def test_ids_of_another_kind_than_their_nodes(tmp_path: Path) -> None:
    _, config = shop_tables(tmp_path / "t")
    config["edges"][0] |= {"source_id_col": "item", "dest_id_col": "user"}
    with pytest.raises(TableError, match=r"column 'item': expected ids of user as string.*found int64"):
        make(config, tmp_path / "g")


def test_csv_names_row_and_column(tmp_path: Path) -> None:
    lines = [f"{i % 7},{i % 5}" for i in range(40)]
    (tmp_path / "e1.csv").write_text("a,b\n" + "\n".join(lines))
    (tmp_path / "e2.csv").write_text("a,b\n" + "\n".join([*lines[:17], "3,x"]))
    config = {"nodes": [{"num_nodes": 7}], "edges": [{"source_id_col": "a", "dest_id_col": "b"}]}
    config["edges"][0]["files"] = f"{tmp_path}/e1.csv"
    assert load_partition_layout(make(config, tmp_path / "g")).edges[None].count == 40
    config["edges"][0]["files"] = f"{tmp_path}/e*.csv"
    with pytest.raises(TableError, match=r"e2.csv, row 17, column 'b': In CSV"):
        make(config, tmp_path / "h")
    config["edges"][0]["files"] = [f"{tmp_path}/e2.csv"]
    with pytest.raises(TableError, match=r"e2.csv, column 'b': expected ids of the nodes as int64"):
        make(config, tmp_path / "h")


CONFIGS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda c: c.update(node=[]), "config: unknown key 'node'"),
    (lambda c: c["edges"][0].pop("source_id_col"), r"edges\[0\]: expected the key 'source_id_col'"),
    (lambda c: c["edges"][0].update(relation=["user", "buys"]), r"edges\[0\]: relation: expected \[source type"),
    (lambda c: c["edges"][0].update(drop="all"), r"edges\[0\]: drop: expected some of unknown_ids"),
    (lambda c: c["edges"][0].update(dest_id_col="user"), r"dest_id_col: expected another column"),
    (lambda c: c["edges"][0].update(self_loops="add"), r"self_loops: expected keep"),
    (lambda c: c["nodes"][0].update(node_type=3), r"nodes\[0\]: node_type: expected str, got 3"),
    (lambda c: c["nodes"][0]["labels"][0].update(split_pct=[1, 1, 1]), r"split_pct: expected three shares"),
    (lambda c: c["nodes"][0]["features"][0].update(out_dtype="int4"), r"out_dtype: expected one of float32"),
    (lambda c: c["nodes"][0]["features"][0].update(transform={}), r"transform: expected none .SQL can compute"),
    (lambda c: c["nodes"].append(c["nodes"][0]), "expected one table for each type, got two for 'user'"),
    (lambda c: c["nodes"][0].pop("node_type"), "expected node_type and relation in all tables"),
    (lambda c: c["nodes"][0].update(format="avro"), "format: name: expected one of parquet"),
    (lambda c: c["nodes"][0].update(files="x", query="SELECT 1"), "expected files or query, got both"),
    (lambda c: c["nodes"][0]["features"][0].update(feature_col="group"), "column 'group': expected numbers"),
    (lambda c: c["nodes"][0].update(node_id_col="uid"), "expected one column 'uid', found 0; it has name, age"),
    (lambda c: c["edges"][0].update(time_col="user"), "column 'user': expected times, found string"),
]


@pytest.mark.parametrize("number", range(len(CONFIGS)))
def test_config_that_says_nothing_sensible(tmp_path: Path, number: int) -> None:
    _, config = shop_tables(tmp_path / "t")
    spoil, words = CONFIGS[number]
    spoil(config)
    with pytest.raises(GraphLearnError, match=words):
        make(config, tmp_path / "g")


def test_arguments(tmp_path: Path) -> None:
    _, config = shop_tables(tmp_path / "t")
    with pytest.raises(InvalidArgumentError, match=r"memory: expected at least \d+ MB"):
        build(config, tmp_path / "g", num_parts=2, memory="64MB")
    with pytest.raises(InvalidArgumentError, match="num_parts: expected an int >= 1, got 0"):
        build(config, tmp_path / "g", num_parts=0)
    for number in (0, -1, "2"):
        with pytest.raises(InvalidArgumentError, match=f"num_threads: expected an int >= 1, or None, got {number!r}"):
            build(config, tmp_path / "g", num_parts=2, num_threads=number)  # type: ignore[arg-type]
    (tmp_path / "bad.yaml").write_text("nodes: [")
    with pytest.raises(InvalidArgumentError, match=r"bad.yaml is no yaml file"):
        TablesConfig.load(tmp_path / "bad.yaml")
    out = make(config, tmp_path / "g")
    with pytest.raises(InvalidArgumentError, match="expected a directory without partitions"):
        make(config, out)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, config = shop_tables(tmp_path / "t")
    path = tmp_path / "shop.json"
    path.write_text(json.dumps(config))
    command = ["build", str(path), "--out", str(tmp_path / "g"), "--parts", "2", "--memory", "2GB"]
    assert main(command) == 0
    assert "write edges user buys item: 100%" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "g")]) == 0
    shown = capsys.readouterr().out
    assert "label: classification of column group: high, low, middle" in shown
    assert "x: 4 columns as float32: age, taste[0], taste[1], taste[2]" in shown
    assert main(command) == 1
    assert "nothing is overwritten" in capsys.readouterr().err


def test_interrupted_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: StageProgress) -> None:
        if progress.stage == "read nodes item":
            raise KeyboardInterrupt

    _, config = shop_tables(tmp_path / "t")
    path = tmp_path / "shop.json"
    path.write_text(json.dumps(config))
    command = ["build", str(path), "--out", str(tmp_path / "g"), "--parts", "2", "--memory", "2GB"]
    with monkeypatch.context() as patched:
        patched.setattr(cli, "_show_progress", interrupt)
        assert main(command) == 130
    assert "interrupted; --resume goes on" in capsys.readouterr().err
    assert not (tmp_path / "g").exists()
    assert main([*command, "--resume"]) == 0
    assert "read nodes user" not in capsys.readouterr().err  # it was finished


@pytest.mark.parametrize("seed", range(30))
def test_damaged_parquet_ends_in_an_error_or_in_partitions(tmp_path: Path, seed: int) -> None:
    """A few bytes of a file changed or cut: whatever Arrow makes of it, nothing but our errors comes out."""
    random = np.random.default_rng(seed)
    _, config = shop_tables(tmp_path / "t")
    path = sorted((tmp_path / "t").iterdir())[seed % 6]
    data = bytearray(path.read_bytes())
    for _ in range(random.integers(1, 5)):
        at = int(random.integers(0, len(data))) if random.random() < 0.5 else len(data) - int(random.integers(1, 600))
        data[max(at, 0)] = int(random.integers(0, 256))
    path.write_bytes(data[: len(data) - int(random.integers(0, 50)) * (seed % 3 == 0)])
    try:
        out = make(config, tmp_path / "g")
    except (StorageError, InvalidArgumentError):
        assert not (tmp_path / "g").exists()
    else:
        load_partition_layout(out, verify=True)


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    3.5,
    "",
    "x",
    "user",
    [],
    ["a"],
    [1],
    {},
    {"name": "csv"},
    {1: 2},
    [[]],
    float("nan"),
]


def mutated(value: Any, random: np.random.Generator) -> Any:
    """A copy in which one thing is another, is gone, or has another name."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = list(value)[random.integers(0, len(value))]
        changed = {name: entry for name, entry in value.items() if name != key}
        kind = random.random()
        if kind < 0.1:
            return changed
        return changed | ({f"{key}_": value[key]} if kind < 0.2 else {key: mutated(value[key], random)})
    if isinstance(value, list) and value and random.random() < 0.8:
        at = int(random.integers(0, len(value)))
        return [*value[:at], mutated(value[at], random), *value[at + 1 :]]
    return ODD[random.integers(0, len(ODD))]


def test_config_with_anything_in_it_is_read_or_refused(tmp_path: Path) -> None:
    _, config = shop_tables(tmp_path / "t")
    random, refused = np.random.default_rng(0), 0
    for _ in range(3000):
        try:
            TablesConfig.load(mutated(mutated(config, random), random))
        except InvalidArgumentError:
            refused += 1
    assert 1000 < refused < 3000


def test_what_a_changed_config_builds(tmp_path: Path) -> None:
    """Where the config is read, what is built of it or the error is one of ours too."""
    _, config = shop_tables(tmp_path / "t")
    random, built = np.random.default_rng(1), 0
    for number in range(60):
        try:
            given = TablesConfig.load(mutated(config, random))
        except InvalidArgumentError:
            continue
        try:
            out = make(given, tmp_path / f"g{number}")
        except (InvalidArgumentError, StorageError):
            continue
        load_partition_layout(out)
        built += 1
    assert built > 0


@pytest.mark.parametrize("seed", range(20))
def test_damaged_csv_ends_in_an_error_or_in_partitions(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    text = "a,b,w\n" + "".join(f"n{i % 9},n{i % 7},{i / 8}\n" for i in range(200))
    data = bytearray(text.encode())
    for _ in range(random.integers(1, 6)):
        data[random.integers(0, len(data))] = int(random.choice([0, 10, 13, 34, 44, 65, 200, 255]))
    (tmp_path / "e.csv").write_bytes(data)
    edges = {"source_id_col": "a", "dest_id_col": "b", "weight_col": "w", "files": f"{tmp_path}/e.csv"}
    try:
        out = make({"edges": [edges]}, tmp_path / "g")
    except (StorageError, InvalidArgumentError):
        assert not (tmp_path / "g").exists()
    else:
        load_partition_layout(out, verify=True)


def test_times_of_edges_and_of_nodes(tmp_path: Path) -> None:
    _, config = shop_tables(tmp_path / "t")
    for table in config["nodes"]:
        table["time_col"] = table["node_id_col"] if table["node_type"] == "item" else "age"
    message = r"expected a time_col of the edges or of the nodes .*, got both.* argument of loaders \(input_time\)"
    with pytest.raises(TableError, match=message):
        make(config, tmp_path / "g")


def test_what_finds_no_order_is_told_before_tables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, config = shop_tables(tmp_path / "t")
    nodes, stages = len(shop.users["name"]) + len(shop.items["code"]), list[str]()
    with pytest.raises(InvalidArgumentError, match=rf"^num_parts: expected 1 to 16, .* order, got {nodes}$"):
        make(config, tmp_path / "g", kind="ldg", parts=nodes, progress=lambda p: stages.append(p.stage))
    assert all(stage.startswith("ids of") for stage in stages)
    told: list[StageProgress] = []
    make(config, tmp_path / "n", kind="ldg", parts=2, progress=told.append)
    assert [(p.stage, p.done) for p in told[-2:]] == [
        ("find an order", 4 * 2 * len(shop.source)),
        ("move rows", told[-1].total),
    ]
    monkeypatch.setitem(sys.modules, "kaminpar", None)
    with pytest.raises(MissingLibraryError, match=r"^kaminpar cannot be imported .*'graphlearn_dist\[partition\]'"):
        build(config, tmp_path / "k", num_parts=2, kind="kaminpar")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".g.build", "n", "t"]
