"""The examples' data sets: the spec's forms, the arrays a file may hold, and the errors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import datasets  # noqa: E402

from graphlearn_dist.errors import InvalidArgumentError  # noqa: E402


def write(path: Path, **changed: np.ndarray | None) -> Path:
    """A path graph of four nodes as an archive; a keyword replaces an array, None removes it."""
    arrays: dict[str, np.ndarray | None] = {
        "edge_index": np.array([[0, 1, 2], [1, 2, 3]], dtype=np.int32),
        "x": np.arange(8, dtype=np.float64).reshape(4, 2),
        "y": np.array([0, 1, 0, 2], dtype=np.uint8),
        "split": np.array([0, 0, 1, 2], dtype=np.uint8),
        **changed,
    }
    np.savez(path, **{key: value for key, value in arrays.items() if value is not None})
    return path


def edges(data: datasets.NodeDataset) -> set[tuple[int, int]]:
    return set(zip(*data.edge_index.tolist(), strict=True))


def test_debian_is_whole() -> None:
    data = datasets.load()
    assert (data.name, data.num_nodes, data.num_edges, data.num_classes) == ("debian", 68_820, 2 * 349_649, 58)
    assert (len(data.train), len(data.val), len(data.test)) == (40_996, 13_167, 14_657)
    assert (data.x.dtype, data.y.dtype, data.edge_index.dtype) == (torch.float32, torch.int64, torch.int64)
    assert data.x.shape[1] == 128
    # The text vectors had unit length before they were rounded.
    lengths = data.x.norm(dim=1)
    assert 0.98 < float(lengths[lengths > 0.5].mean()) < 1.02
    source, target = data.edge_index
    assert torch.equal(
        torch.sort(source * data.num_nodes + target).values, torch.sort(target * data.num_nodes + source).values
    )


def test_npz_makes_both_directions_and_drops_loops(tmp_path: Path) -> None:
    pairs = np.array([[0, 1, 1, 2, 3], [1, 0, 2, 3, 3]])
    data = datasets.load(str(write(tmp_path / "a.npz", edge_index=pairs)))
    assert edges(data) == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)}
    assert data.num_edges == 6
    assert data.x.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert (data.train.tolist(), data.val.tolist(), data.test.tolist()) == ([0, 1], [2], [3])
    assert (data.y.tolist(), data.num_classes, data.name) == ([0, 1, 0, 2], 3, "a")


def test_npz_directed_is_taken_as_it_is(tmp_path: Path) -> None:
    data = datasets.load(str(write(tmp_path / "a.npz", directed=np.array([1]))))
    assert data.edge_index.tolist() == [[0, 1, 2], [1, 2, 3]]


def test_npz_sparse_features(tmp_path: Path) -> None:
    sparse = {
        "x_indptr": np.array([0, 2, 2, 3, 4]),
        "x_indices": np.array([0, 2, 1, 2], dtype=np.uint16),
        "x_shape": np.array([4, 3]),
    }
    data = datasets.load(str(write(tmp_path / "a.npz", x=None, **sparse)))
    assert data.x.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    data = datasets.load(str(write(tmp_path / "b.npz", x=None, **sparse, x_data=np.array([5, 6, 7, 8]))))
    assert data.x.tolist() == [[5, 0, 6], [0, 0, 0], [0, 7, 0], [0, 0, 8]]


def test_npz_quantised_features(tmp_path: Path) -> None:
    x_q = np.array([[1, -2], [0, 4], [127, 0], [-127, 1]], dtype=np.int8)
    scale = np.array([0.5, 2.0], dtype=np.float32)
    data = datasets.load(str(write(tmp_path / "a.npz", x=None, x_q=x_q, x_scale=scale)))
    assert data.x.tolist() == [[0.5, -4], [0, 8], [63.5, 0], [-63.5, 2]]


def test_npz_several_splits(tmp_path: Path) -> None:
    path = str(write(tmp_path / "a.npz", split=np.array([[0, 0, 1, 2], [2, 1, 0, 3]])))
    second = datasets.load(path, split_index=1)
    assert (second.train.tolist(), second.val.tolist(), second.test.tolist()) == ([2], [1], [0])
    with pytest.raises(InvalidArgumentError, match=r"split_index: expected 0\.\.1, got 2"):
        datasets.load(path, split_index=2)


def test_npz_id_lists(tmp_path: Path) -> None:
    lists = {"train_idx": np.array([3, 1]), "val_idx": np.array([], dtype=np.int32), "test_idx": np.array([0])}
    data = datasets.load(str(write(tmp_path / "a.npz", split=None, **lists)))
    assert (data.train.tolist(), data.val.tolist(), data.test.tolist()) == ([1, 3], [], [0])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": None}, "expected the array.s. y, got"),
        ({"edge_index": None}, "expected the array.s. edge_index, got"),
        ({"x": None}, "expected features as x,"),
        ({"x": None, "x_q": np.zeros((4, 2), np.int8)}, "expected the array.s. x_scale"),
        ({"split": None, "train_idx": np.array([0])}, "expected split, or train_idx, val_idx, test_idx"),
        ({"edge_index": np.array([0, 1])}, "edge_index: expected shape"),
        ({"edge_index": np.array([[0], [4]])}, r"edge_index: expected node ids in \[0, 4\), got \[0, 4\]"),
        ({"y": np.array([0, 1])}, "y: expected 4 labels, got 2"),
        ({"split": np.array([1, 1, 2, 2])}, "split: expected disjoint parts"),
    ],
)
def test_npz_errors_name_what_is_wrong(tmp_path: Path, changed: dict[str, np.ndarray | None], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        datasets.load(str(write(tmp_path / "bad.npz", **changed)))


def test_split_may_not_overlap(tmp_path: Path) -> None:
    lists = {"train_idx": np.array([0, 1]), "val_idx": np.array([1]), "test_idx": np.array([2])}
    with pytest.raises(InvalidArgumentError, match="split: expected disjoint parts"):
        datasets.load(str(write(tmp_path / "bad.npz", split=None, **lists)))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", "data spec: expected 'debian'"),
        ("missing.npz", "there is no file missing.npz"),
        ("community:", "whole numbers"),
        ("community:many", "whole numbers"),
        ("community:100:5:4:8:1", "whole numbers"),
        ("community:30:5:16", "num_nodes >= 10"),
        ("pyg:NoSuchClass/x", "class of torch_geometric.datasets"),
    ],
)
def test_bad_specs(spec: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        datasets.load(spec)


def test_community_is_a_function_of_its_arguments() -> None:
    first, again = datasets.load("community:2000:10:4:8", seed=3), datasets.load("community:2000:10:4:8", seed=3)
    other = datasets.load("community:2000:10:4:8", seed=4)
    assert torch.equal(first.edge_index, again.edge_index)
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.train, again.train)
    assert first.edge_index.shape != other.edge_index.shape or not torch.equal(first.edge_index, other.edge_index)


def test_community_has_the_asked_shape() -> None:
    data = datasets.load("community:20000:12:5:24", seed=1)
    assert (data.num_nodes, data.num_classes, data.x.shape[1]) == (20_000, 5, 24)
    assert 10.5 < data.num_edges / data.num_nodes <= 12
    source, target = data.edge_index
    assert not bool((source == target).any())
    # 70 % within, and a fifth of the others by chance: 0.7 + 0.3 / 5.
    within = float((data.y[source] == data.y[target]).float().mean())
    assert 0.72 < within < 0.80
    degree = torch.bincount(target, minlength=data.num_nodes)
    assert int(degree.max()) > 15 * degree.float().mean()
    assert 0.58 < len(data.train) / data.num_nodes < 0.62


def test_community_rewards_the_graph() -> None:
    """Nearest centre, by own features and by the neighbors' mean: the second must do far better."""
    data = datasets.load("community:5000:16:8:32", seed=0)
    source, target = data.edge_index
    mean = torch.zeros_like(data.x).index_add_(0, target, data.x[source])
    mean /= torch.bincount(target, minlength=data.num_nodes).clamp(min=1)[:, None]

    def right(x: torch.Tensor) -> float:
        centres = torch.stack([x[data.train][data.y[data.train] == label].mean(0) for label in range(8)])
        return float((torch.cdist(x[data.test], centres).argmin(1) == data.y[data.test]).float().mean())

    assert right(mean) > right(data.x) + 0.2
