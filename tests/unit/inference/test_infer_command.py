"""The command ``graphlearn-dist infer``: a model's file and checkpoint, original ids, pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

from graphlearn_dist import DistEmbedding, SparseAdagrad
from graphlearn_dist.cli import main
from graphlearn_dist.inference import InferenceOptions, infer, open_results, score_pairs
from graphlearn_dist.tables import build
from tests.support.graphs import random_graph
from tests.support.inference import basic, dataset_of, partitions_of
from tests.support.processes import ROOT, run_program

GRAPH = random_graph(120, 900, 1)
MODEL = """
from torch_geometric.nn import GraphSAGE

def make():
    return GraphSAGE(12, 16, 2, 5)

def layers():
    return list(make().convs)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    torch.save({"state_dict": basic(GraphSAGE).state_dict(), "epoch": 3}, tmp_path / "model.pt")
    return partitions_of(GRAPH, tmp_path, "random", 2)


def run(directory: Path, *more: str, function: str = "make") -> int:
    top = directory.parent
    words = ["infer", "--data", str(directory), "--model", f"{top / 'model.py'}:{function}", "--out", str(top / "out")]
    return main([*words, "--checkpoint", str(top / "model.pt"), "--quiet", *more])


def test_rows_and_pairs(directory: Path) -> None:
    pairs = torch.randint(0, 120, (2, 50))
    np.save(directory.parent / "pairs.npy", pairs.numpy())
    assert run(directory, "--block-size", "31", "--pairs", str(directory.parent / "pairs.npy")) == 0
    expected = infer(basic(GraphSAGE), dataset_of(GRAPH))
    found = open_results(directory.parent / "out")
    assert torch.equal(found.rows(), expected.rows())
    scores = np.load(directory.parent / "out" / "pair_scores.npy")
    assert torch.equal(torch.from_numpy(scores), score_pairs(expected, pairs))


def test_learned_rows_of_a_checkpoint(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    embedding = DistEmbedding(120, 4, name="a", dtype=torch.float64, seed=3)
    (embedding(torch.arange(120)) ** 2).sum().backward()
    SparseAdagrad([embedding], lr=0.1).step()
    embedding.save(directory.parent / "rows of a")
    torch.manual_seed(0)
    model = GraphSAGE(16, 16, 2, 5)
    torch.save(model.state_dict(), directory.parent / "model.pt")
    (directory.parent / "model.py").write_text(MODEL.replace("GraphSAGE(12", "GraphSAGE(16"))
    assert run(directory, "--embeddings", str(directory.parent / "rows of a")) == 0
    expected = infer(model, dataset_of(GRAPH), embeddings=embedding)
    assert torch.equal(open_results(directory.parent / "out").rows(), expected.rows())
    found = DistEmbedding.from_checkpoint(directory.parent / "rows of a")
    assert (found.settings, found.step) == (embedding.settings, 1)
    twice = ["--embeddings", str(directory.parent / "rows of a")] * 2
    assert run(directory, *twice) == 1
    assert "--embeddings: expected one checkpoint for each node type, got " in capsys.readouterr().err


def launch(directory: Path, top: Path, *more: str) -> tuple[int, str]:
    """`infer --together` in two trainers beside two servers, as a program: how it ended, and what it said."""
    words = ["launch", "--data", str(directory), "--servers", "2", "--trainers", "2", "-m", "graphlearn_dist", "infer"]
    model = ["--model", f"{top / 'model.py'}:make", "--data", str(directory), "--out", str(top / "together")]
    command = ["-m", "graphlearn_dist", *words, "--together", *model, *more]
    done = run_program(*command, directory=ROOT, timeout_s=120.0)
    return done.returncode, done.stdout + done.stderr


def test_together(directory: Path) -> None:
    """The files of one process, written by two."""
    pairs = torch.randint(0, 120, (2, 50))
    np.save(directory.parent / "pairs.npy", pairs.numpy())
    more = ["--checkpoint", str(directory.parent / "model.pt"), "--pairs", str(directory.parent / "pairs.npy")]
    code, said = launch(directory, directory.parent, *more, "--file-size", "1kB")
    assert code == 0, said
    assert said.count("layer 2 of 2") == 1
    assert run(directory, "--pairs", str(directory.parent / "pairs.npy"), "--file-size", "1kB") == 0
    for path in sorted((directory.parent / "out").iterdir()):
        if path.suffix == ".npy":
            assert path.read_bytes() == (directory.parent / "together" / path.name).read_bytes()


def test_a_failure_in_a_trainer_ends_the_job(directory: Path) -> None:
    """One of two fails, in its first block."""
    lines = "import os\n\ndef layer(x, edges):\n    assert os.environ['GLD_RANK'] == '0', 'no rows'\n    return x\n"
    (directory.parent / "model.py").write_text(f"{lines}\ndef make():\n    return [layer]\n")
    code, said = launch(directory, directory.parent)
    assert code != 0
    assert "no rows" in said
    assert not (directory.parent / "together" / "RESULTS.json").exists()


def test_together_without_a_launcher(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GLD_ROLE", raising=False)
    assert run(directory, "--together") == 1
    assert "not started by `graphlearn-dist launch`" in capsys.readouterr().err


NAMES = [f"node {number:03}" for number in range(120)]


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """Partitions of nodes that have names and one feature, 119 down to 0 in the order of the names."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"id": NAMES[::-1], "x": [float(i) for i in range(120)]}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"a": NAMES, "b": NAMES[::-1]}), tmp_path / "knows.parquet")
    config = {
        "nodes": [{"node_type": "user", "node_id_col": "id", "files": "users.parquet",
                   "features": [{"feature_col": "x"}]}],
        "edges": [{"relation": ["user", "knows", "user"], "source_id_col": "a", "dest_id_col": "b",
                   "files": "knows.parquet"}],
    }  # fmt: skip
    (tmp_path / "graph.json").write_text(json.dumps(config))
    build(tmp_path / "graph.json", tmp_path / "parts", num_parts=2)
    return tmp_path / "parts"


def test_original_ids(named: Path, tmp_path: Path) -> None:
    chosen = InferenceOptions(format="parquet", file_bytes=100, block_size=31)
    infer([lambda x, _: x], named, tmp_path / "out", options=chosen)
    batches = list(open_results(tmp_path / "out").batches("user"))
    assert len(batches) == -(-120 // (100 // 4))
    assert [one for ids, _ in batches for one in ids.to_pylist()] == NAMES
    assert torch.cat([rows for _, rows in batches]).flatten().tolist() == list(range(119, -1, -1))


@pytest.mark.thorough
def test_original_ids_together(named: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def make():\n    return [lambda x, edges: x]\n")
    code, said = launch(named, tmp_path, "--format", "parquet")
    assert code == 0, said
    [(ids, rows)] = open_results(tmp_path / "together").batches("user")
    assert ids.to_pylist() == NAMES
    assert rows.flatten().tolist() == list(range(119, -1, -1))


def infer_pairs(named: Path, pairs: str, *more: str) -> int:
    top = named.parent
    (top / "same.py").write_text("def layers():\n    return [lambda x, edges: x]\n")
    words = [
        "infer",
        "--data",
        str(named),
        "--model",
        f"{top / 'same.py'}:layers",
        "--out",
        str(top / "out"),
        "--quiet",
    ]
    return main([*words, "--pairs", str(top / pairs), "--pair-types", "user", "user", *more])


@pytest.mark.parametrize("file_format", ["parquet", "csv"])
@pytest.mark.parametrize("columns", [("from", "to"), ("to", "from")])
def test_pairs_of_original_ids(named: Path, file_format: str, columns: tuple[str, str]) -> None:
    pa, pq, csv = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet", "pyarrow.csv"))
    table = pa.table({"from": NAMES[:50], "weight": [0.5] * 50, "to": NAMES[70:]})
    write = pq.write_table if file_format == "parquet" else csv.write_csv
    write(table, named.parent / f"pairs.{file_format}")
    assert infer_pairs(named, f"pairs.{file_format}", "--pair-columns", *columns) == 0
    found = pq.read_table(named.parent / "out" / "pair_scores.parquet")
    assert found.column_names == [*columns, "score"]
    assert (found["from"].to_pylist(), found["to"].to_pylist()) == (NAMES[:50], NAMES[70:])
    assert found["score"].to_pylist() == [float((119 - i) * (49 - i)) for i in range(50)]


def test_pairs_of_categories(named: Path) -> None:
    """As tables of pandas have them: ids in a dictionary."""
    pa, pq = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    ends = [pa.array(NAMES[i : i + 50]).dictionary_encode() for i in (0, 70)]
    pq.write_table(pa.table(ends, names=["a", "b"]), named.parent / "pairs.parquet")
    assert infer_pairs(named, "pairs.parquet") == 0
    found = pq.read_table(named.parent / "out" / "pair_scores.parquet")
    assert (found["a"].to_pylist(), found["b"].to_pylist()) == (NAMES[:50], NAMES[70:])
    assert found["score"].to_pylist() == [float((119 - i) * (49 - i)) for i in range(50)]


@pytest.mark.parametrize(
    ("pairs", "more", "message"),
    [
        ({"a": ["node 001"], "b": ["nobody"]}, (), r"pairs: .*rows from 0 on: .*no node has the id 'nobody'"),
        ({"a": ["node 001"]}, (), r"pairs: expected two columns in .*, got \['a'\]"),
        (
            {"a": ["node 001"], "b": ["node 002"]},
            ("--pair-columns", "a", "c"),
            r"dist: pairs: expected .* found no \['c'\]",
        ),
        (
            {"a": ["node 001"], "b": ["node 002"]},
            ("--pair-columns", "a", "a"),
            r"columns: expected one for sources and another one for targets, got \['a', 'a'\]",
        ),
        ({"a": ["node 001"], "b": [2]}, (), r"pairs: column 'b' of .*, rows from 0 on: .* expected large_string, got"),
    ],
)
def test_mistakes_in_pairs(
    named: Path, pairs: dict[str, list[str]], more: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(pairs), named.parent / "pairs.parquet")
    assert infer_pairs(named, "pairs.parquet", *more) == 1
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("more", "function", "message"),
    [
        ((), "nothing", "model: expected a function 'nothing'"),
        ((), "layers", "checkpoint: .* does not fit the model"),
        (("--checkpoint", "model.py"), "make", "cannot be read"),
        (("--fanout", "0"), "make", "fanout: expected"),
        (("--pairs", "nowhere.npy"), "make", "--pairs: expected a file, found none at nowhere.npy"),
        (("--pairs", "model.npy"), "make", "pairs: model.npy: cannot be read"),
        (("--pairs", "names.npy"), "make", "pairs: expected int64 or int32 .* in names.npy, got <U1"),
    ],
)
def test_mistakes(
    directory: Path,
    more: tuple[str, ...],
    function: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(directory.parent)
    (directory.parent / "model.npy").write_bytes((directory.parent / "model.pt").read_bytes())
    np.save(directory.parent / "names.npy", np.array([["a"], ["b"]]))
    assert run(directory, *more, function=function) == 1
    assert re.search(message, capsys.readouterr().err)
