"""Node-classification data sets for the examples, by a one-word spec.

debian                                          embedded: 68,820 packages of a Linux distribution (the default)
community:NODES[:DEGREE[:CLASSES[:DIM]]]        generated: communities, power-law degrees, noisy features
path/to/file.npz                                your own arrays, see `from_npz`
pyg:Planetoid/Cora                              a data set of torch_geometric.datasets (downloads it)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphlearn_dist.errors import InvalidArgumentError

EMBEDDED = Path(__file__).resolve().parent / "data" / "debian.npz"
SPLIT_NAMES = ("train", "val", "test")


@dataclass(frozen=True)
class NodeDataset:
    """A graph whose nodes are to be classified; every id is the data set's own.

    Attributes:
        name: how the data set is called in a report.
        edge_index: int64 ``[2, num_edges]``, source and target; undirected graphs hold both directions.
        x: float32 ``[num_nodes, dim]``.
        y: int64 ``[num_nodes]``, classes from 0.
        train: int64 ``[num_train]``, sorted node ids; `val` and `test` likewise, and the three are disjoint.
        num_classes: number of classes.
    """

    name: str
    edge_index: Tensor
    x: Tensor
    y: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    num_classes: int

    def __post_init__(self) -> None:
        for field, ids in (("edge_index", self.edge_index), *((name, getattr(self, name)) for name in SPLIT_NAMES)):
            if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.num_nodes:
                raise InvalidArgumentError(
                    f"{self.name}: {field}: expected node ids in [0, {self.num_nodes}), "
                    f"got [{int(ids.min())}, {int(ids.max())}]"
                )
        if len(self.y) != self.num_nodes:
            raise InvalidArgumentError(f"{self.name}: y: expected {self.num_nodes} labels, got {len(self.y)}")
        split = torch.cat([self.train, self.val, self.test])
        if len(self.train) == 0 or len(self.test) == 0 or len(split) != len(split.unique()):
            raise InvalidArgumentError(
                f"{self.name}: split: expected disjoint parts with at least one train and one test node, got "
                f"{len(self.train)}/{len(self.val)}/{len(self.test)} nodes, {len(split.unique())} distinct"
            )

    @property
    def num_nodes(self) -> int:
        return len(self.x)

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]


def load(spec: str = "debian", *, seed: int = 0, split_index: int = 0) -> NodeDataset:
    """Load or generate the data set that `spec` names; see the top of this file for the forms.

    Args:
        spec: the name.
        seed: seed of a generated graph.
        split_index: which split, where the data set has several.

    Raises:
        InvalidArgumentError: `spec` has none of the forms, or the file lacks arrays.
    """
    if spec == "debian":
        return from_npz(EMBEDDED, name="debian")
    kind, _, rest = spec.partition(":")
    if kind == "community":
        return community(**_community_sizes(rest), seed=seed)
    if kind == "pyg":
        return _from_pyg(rest, split_index)
    if spec.endswith(".npz"):
        return from_npz(Path(spec), split_index=split_index)
    raise InvalidArgumentError(
        f"data spec: expected 'debian', 'community:NODES[:DEGREE[:CLASSES[:DIM]]]', a path that ends in .npz, "
        f"or 'pyg:CLASS/NAME', got {spec!r}"
    )


# --- generated -------------------------------------------------------------------------------------------------


def _community_sizes(text: str) -> dict[str, int]:
    names = ("num_nodes", "degree", "num_classes", "dim")
    parts = text.split(":")
    if len(parts) > len(names) or not all(part.isdecimal() for part in parts):
        raise InvalidArgumentError(
            f"data spec: expected community:NODES[:DEGREE[:CLASSES[:DIM]]] with whole numbers, got 'community:{text}'"
        )
    return {name: int(part) for name, part in zip(names, parts, strict=False)}


def community(
    num_nodes: int,
    degree: int = 15,
    num_classes: int = 16,
    dim: int = 64,
    *,
    seed: int = 0,
    homophily: float = 0.7,
    noise: float = 2.0,
) -> NodeDataset:
    """A degree-corrected planted partition (Karrer and Newman, 2011) whose classes are its communities.

    A node's expected degree follows a power law with exponent 2.5, cut at 100 times the smallest. A fraction
    `homophily` of the edges stays within a community. Features are the community's centre plus `noise` times
    standard normal noise: own features alone classify poorly, the neighbors' mean classifies well.

    Args:
        num_nodes: number of nodes; ids are in random order, so communities are not ranges of ids.
        degree: mean number of neighbors asked for; repeated pairs and loops are dropped, so slightly fewer come out.
        num_classes: number of communities.
        dim: width of the features.
        seed: the same arguments and seed give the same data set, bit by bit.
        homophily: fraction of edges within a community.
        noise: standard deviation of the features' noise.

    Returns:
        The data set; both directions of each edge, split 60/20/20.

    Raises:
        InvalidArgumentError: a size is too small.
    """
    if num_classes < 2 or num_nodes < 10 * num_classes or degree < 1 or dim < 1:
        raise InvalidArgumentError(
            f"community: expected num_classes >= 2, num_nodes >= 10 * num_classes, degree >= 1 and dim >= 1, got "
            f"num_nodes={num_nodes}, degree={degree}, num_classes={num_classes}, dim={dim}"
        )
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, num_nodes)
    y[rng.permutation(num_nodes)[:num_classes]] = np.arange(num_classes)  # no class is empty
    edge_index = _community_edges(rng, y, num_classes, num_nodes * degree // 2, homophily)
    centres = rng.standard_normal((num_classes, dim), dtype=np.float32)
    x = rng.standard_normal((num_nodes, dim), dtype=np.float32)
    x *= noise
    x += centres[y] / np.sqrt(dim / 16)
    split = np.searchsorted([0.6, 0.8], rng.random(num_nodes), side="right").astype(np.uint8)
    return _make(f"community:{num_nodes}:{degree}", edge_index, x, y, _ids_of(split))


def _community_edges(
    rng: np.random.Generator, y: np.ndarray, num_classes: int, num_pairs: int, homophily: float
) -> np.ndarray:
    """Pairs drawn in proportion to the nodes' weights, the partner within the community or anywhere."""
    weight = np.minimum((1.0 - rng.random(len(y))) ** (-1 / 1.5), 100.0)
    by_class = np.argsort(y, kind="stable")
    # One running sum in order of community serves both kinds of draw: anywhere, or between a community's limits.
    running = np.concatenate([[0.0], np.cumsum(weight[by_class])])
    limits = running[np.searchsorted(y[by_class], np.arange(num_classes + 1))]

    def draw(low: np.ndarray | float, high: np.ndarray | float) -> np.ndarray:
        place = np.searchsorted(running, low + rng.random(num_pairs) * (high - low), side="right") - 1
        return by_class[np.minimum(place, len(y) - 1)]

    first = draw(0.0, running[-1])
    inside = rng.random(num_pairs) < homophily
    own = y[first]
    second = draw(np.where(inside, limits[own], 0.0), np.where(inside, limits[own + 1], running[-1]))
    return both_directions(np.stack([first, second]), len(y))


# --- from a file -----------------------------------------------------------------------------------------------


def from_npz(path: Path, *, name: str | None = None, split_index: int = 0) -> NodeDataset:
    """Read a numpy archive with these arrays (nothing is unpickled).

        edge_index     integer [2, E]. Both directions are made of it, repeats and loops dropped, unless the array
                       `directed` is there and not 0: then the edges are taken as they are.
        features       `x` [N, dim]; or int8 `x_q` [N, dim] with `x_scale` [dim]; or the CSR arrays `x_indptr`,
                       `x_indices`, `x_shape` and perhaps `x_data` (all ones without).
        y              integer [N]
        split          `split` [N] or [num_splits, N] with 0 train, 1 validation, 2 test and anything else unused;
                       or the id lists `train_idx`, `val_idx`, `test_idx`.

    Raises:
        InvalidArgumentError: there is no such file, or arrays are missing or do not fit together.
    """
    if not path.is_file():
        raise InvalidArgumentError(f"data spec: there is no file {path}")
    with np.load(path, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    _require(path, arrays, ("edge_index",), ("y",))
    x = _features(path, arrays)
    edge_index = arrays["edge_index"].astype(np.int64)
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise InvalidArgumentError(f"{path}: edge_index: expected shape [2, E], got {list(edge_index.shape)}")
    if not arrays.get("directed", np.zeros(1)).any():
        edge_index = both_directions(edge_index, len(x))
    ids = _split_of(path, arrays, split_index)
    return _make(name or path.stem, edge_index, x, arrays["y"], ids)


def _require(path: Path, arrays: Mapping[str, np.ndarray], *choices: tuple[str, ...]) -> None:
    for keys in choices:
        if not all(key in arrays for key in keys):
            raise InvalidArgumentError(f"{path}: expected the array(s) {', '.join(keys)}, got {', '.join(arrays)}")


def _features(path: Path, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if "x" in arrays:
        return arrays["x"].astype(np.float32)
    if "x_q" in arrays:
        _require(path, arrays, ("x_scale",))
        return arrays["x_q"] * arrays["x_scale"].astype(np.float32)
    if "x_indptr" not in arrays:
        raise InvalidArgumentError(
            f"{path}: expected features as x, as x_q and x_scale, or as x_indptr, x_indices and x_shape, "
            f"got {', '.join(arrays)}"
        )
    _require(path, arrays, ("x_indices", "x_shape"))
    num_rows, dim = (int(size) for size in arrays["x_shape"])
    x = np.zeros((num_rows, dim), dtype=np.float32)
    rows = np.repeat(np.arange(num_rows), np.diff(arrays["x_indptr"]))
    x[rows, arrays["x_indices"]] = arrays.get("x_data", 1)
    return x


def _split_of(path: Path, arrays: Mapping[str, np.ndarray], split_index: int) -> tuple[np.ndarray, ...]:
    if "split" in arrays:
        splits = np.atleast_2d(arrays["split"])
        if not 0 <= split_index < len(splits):
            raise InvalidArgumentError(f"{path}: split_index: expected 0..{len(splits) - 1}, got {split_index}")
        return _ids_of(splits[split_index])
    keys = tuple(f"{name}_idx" for name in SPLIT_NAMES)
    if not all(key in arrays for key in keys):
        raise InvalidArgumentError(f"{path}: expected split, or {', '.join(keys)}, got {', '.join(arrays)}")
    return tuple(np.sort(arrays[key]) for key in keys)


def _ids_of(split: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.flatnonzero(split == part) for part in range(3))


# --- from PyG --------------------------------------------------------------------------------------------------


def _from_pyg(text: str, split_index: int) -> NodeDataset:
    class_name, _, name = text.partition("/")
    import torch_geometric.datasets as pyg  # costs seconds, and only this form needs it

    if not hasattr(pyg, class_name):
        raise InvalidArgumentError(
            f"data spec: expected pyg:CLASS/NAME with a class of torch_geometric.datasets, got 'pyg:{text}'"
        )
    root = Path.home() / ".cache" / "graphlearn_dist" / class_name
    data: Any = getattr(pyg, class_name)(str(root), *([name] if name else []))[0]
    for mask in ("train_mask", "val_mask", "test_mask"):
        if getattr(data, mask, None) is None:
            raise InvalidArgumentError(f"pyg:{text}: expected a data set with {mask}, got {data}")
    masks = [getattr(data, f"{part}_mask") for part in SPLIT_NAMES]
    columns = [mask[:, split_index] if mask.dim() == 2 else mask for mask in masks]
    ids = tuple(column.nonzero().flatten().numpy() for column in columns)
    return _make(f"pyg:{text}", data.edge_index.numpy(), data.x.float().numpy(), data.y.flatten().numpy(), ids)


# --- shared ----------------------------------------------------------------------------------------------------


def both_directions(pairs: np.ndarray, num_nodes: int) -> np.ndarray:
    """int64 ``[2, E]``: each pair in both directions, sorted by source; repeats and loops dropped."""
    row, col = pairs.astype(np.int64)
    proper = row != col
    row, col = row[proper], col[proper]
    keys = np.unique(np.concatenate([row * num_nodes + col, col * num_nodes + row]))
    return np.stack([keys // num_nodes, keys % num_nodes])


def _make(name: str, edge_index: np.ndarray, x: np.ndarray, y: np.ndarray, ids: tuple[np.ndarray, ...]) -> NodeDataset:
    train, val, test = (torch.from_numpy(part.astype(np.int64)) for part in ids)
    labels = torch.from_numpy(y.astype(np.int64))
    return NodeDataset(
        name=name,
        edge_index=torch.from_numpy(np.ascontiguousarray(edge_index, dtype=np.int64)),
        x=torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32)),
        y=labels,
        train=train,
        val=val,
        test=test,
        num_classes=int(labels.max()) + 1,
    )
