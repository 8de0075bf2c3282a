"""The command ``graphlearn-dist infer``: a model's file and checkpoint, original ids, pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.nn import GraphSAGE

from graphlearn_dist.cli import main
from graphlearn_dist.inference import InferenceOptions, infer, open_results, score_pairs
from graphlearn_dist.tables import build
from tests.support.graphs import random_graph
from tests.support.inference import basic, dataset_of, partitions_of

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


def test_original_ids(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = [f"node {number:03}" for number in range(120)]
    pq.write_table(pa.table({"id": names[::-1], "x": [float(i) for i in range(120)]}), tmp_path / "users.parquet")
    pq.write_table(pa.table({"a": names, "b": names[::-1]}), tmp_path / "knows.parquet")
    config = {
        "nodes": [{"node_type": "user", "node_id_col": "id", "files": "users.parquet",
                   "features": [{"feature_col": "x"}]}],
        "edges": [{"relation": ["user", "knows", "user"], "source_id_col": "a", "dest_id_col": "b",
                   "files": "knows.parquet"}],
    }  # fmt: skip
    (tmp_path / "graph.json").write_text(json.dumps(config))
    build(tmp_path / "graph.json", tmp_path / "parts", num_parts=2)
    chosen = InferenceOptions(format="parquet", file_bytes=100, block_size=31)
    infer([lambda x, _: x], tmp_path / "parts", tmp_path / "out", options=chosen)
    batches = list(open_results(tmp_path / "out").batches("user"))
    assert len(batches) == -(-120 // (100 // 4))
    assert [one for ids, _ in batches for one in ids.to_pylist()] == names
    assert torch.cat([rows for _, rows in batches]).flatten().tolist() == list(range(119, -1, -1))


@pytest.mark.parametrize(
    ("more", "function", "message"),
    [
        ((), "nothing", "model: expected a function 'nothing'"),
        ((), "layers", "checkpoint: .* does not fit the model"),
        (("--checkpoint", "model.py"), "make", "cannot be read"),
        (("--fanout", "0"), "make", "fanout: expected"),
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
    assert run(directory, *more, function=function) == 1
    assert re.search(message, capsys.readouterr().err)
