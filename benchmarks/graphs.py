"""Graphs for the benchmarks: made or read once, kept as .npy files that every peer loads.

Needs numpy only, so that a peer's own environment can import it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

FORMAT = 3  # part of every cached name: raise it where a generator changes
TIMES = 1_000_000  # of edges, uniform
_CHUNK_EDGES = 4_000_000


@dataclass(frozen=True)
class PowerLaw:
    """A generated graph of one node type.

    Degrees follow a Lomax (shifted Pareto) law. A ``local`` share of a node's edges goes to ``window`` nodes near it on
    a hidden ring, which gives clustering; the others go to nodes in proportion to their degree, as in the
    configuration model (Newman, Networks, section 12.1). Neighbors on the ring are far apart in memory, as ids of real
    graphs are. Some edges are double: draws are independent.

    Attributes:
        nodes: number of nodes.
        edges: number of edges.
        floor: the smallest degree, below the mean.
        exponent: of the degree's density, above 2.
        local: share of edges to nodes near by.
        window: how many nodes are near by.
        seed: of the generator.
    """

    nodes: int
    edges: int
    floor: int = 12
    exponent: float = 2.4
    local: float = 0.4
    window: int = 100
    seed: int = 0

    @property
    def name(self) -> str:
        shape = f"{self.floor}-{self.exponent:g}-{self.local:g}-{self.window}-{self.seed}"
        return f"powerlaw-{self.nodes}-{self.edges}-{shape}-v{FORMAT}"


@dataclass(frozen=True)
class GraphFiles:
    """A graph in a directory: row ``v`` holds the in-neighbors of node ``v``, sorted.

    Files: ``indptr.npy`` int64 ``[nodes + 1]``, ``indices.npy`` int64 and ``indices32.npy`` int32 ``[edges]``,
    ``seeds.npy`` int64 ``[nodes]`` (all nodes in random order), ``weights.npy`` float32 ``[edges]`` in (0, 1],
    ``times.npy`` int64 ``[edges]`` in [0, TIMES), ``features-<dim>.npy`` float32 ``[nodes, dim]``. The last three are
    made when first asked for.
    """

    directory: Path
    nodes: int
    edges: int

    def load(self, name: str, *, mapped: bool = False) -> np.ndarray:
        """One array, copied to memory of this process (numpy asks for huge pages) or mapped from its file."""
        path = self.directory / f"{name}.npy"
        if mapped:
            return np.lib.format.open_memmap(path, mode="c")  # "c": writable for torch, never written back
        return np.load(path)

    def with_features(self, dim: int) -> str:
        """The name of the feature file, made if it is not there."""
        name = f"features-{dim}"
        if not (self.directory / f"{name}.npy").exists():
            rows = np.random.default_rng(1).random((self.nodes, dim), dtype=np.float32)
            _save(self.directory / f"{name}.npy", rows)
        return name

    def with_times(self) -> str:
        """The name of the file of edge times, made if it is not there."""
        if not (self.directory / "times.npy").exists():
            _save(self.directory / "times.npy", np.random.default_rng(4).integers(0, TIMES, self.edges))
        return "times"

    def with_weights(self) -> str:
        """The name of the file of edge weights, made if it is not there."""
        if not (self.directory / "weights.npy").exists():
            weights = 1.0 - np.random.default_rng(2).random(self.edges, dtype=np.float32)
            _save(self.directory / "weights.npy", weights)
        return "weights"


def _save(path: Path, array: np.ndarray) -> None:
    """Whole or not at all."""
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as file:
        np.save(file, array)
    part.rename(path)


def default_cache() -> Path:
    """Where graphs are kept unless told."""
    return Path.home() / ".cache" / "graphlearn_dist" / "bench"


def open_graph(directory: Path) -> GraphFiles:
    """A graph that was made before."""
    meta = json.loads((directory / "meta.json").read_text())
    return GraphFiles(directory, meta["nodes"], meta["edges"])


def make_graph(spec: PowerLaw, cache: Path) -> GraphFiles:
    """The graph of a spec, from the cache or made now."""
    directory = cache / spec.name
    if not (directory / "meta.json").exists():
        indptr = np.concatenate([[0], np.cumsum(_degrees(spec))])
        _write_graph(directory, indptr, _fill_rows(spec, indptr), asdict(spec))
    return open_graph(directory)


def read_graph(path: Path, cache: Path) -> GraphFiles:
    """A graph from an .npz file: ``edge_index`` int ``[2, edges]`` (source, target), or ``indptr`` and ``indices``."""
    stat = path.stat()
    directory = cache / f"{path.stem}-{stat.st_size}-{int(stat.st_mtime)}-v{FORMAT}"
    if not (directory / "meta.json").exists():
        with np.load(path) as data:
            if "indptr" in data and "indices" in data:
                indptr, indices = data["indptr"].astype(np.int64), data["indices"].astype(np.int64)
            elif "edge_index" in data:
                indptr, indices = _compress(data["edge_index"].astype(np.int64))
            else:
                raise SystemExit(f"{path}: expected edge_index, or indptr and indices; found {sorted(data)}")
        _write_graph(directory, indptr, indices, {"source": path.name})
    return open_graph(directory)


def _compress(edge_index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    source, target = edge_index
    nodes = int(edge_index.max()) + 1
    order = np.lexsort((source, target))
    return np.concatenate([[0], np.cumsum(np.bincount(target, minlength=nodes))]), source[order]


def _write_graph(directory: Path, indptr: np.ndarray, indices: np.ndarray, origin: dict[str, object]) -> None:
    nodes, edges = indptr.size - 1, indices.size
    directory.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=directory.parent))
    try:
        np.save(part / "indptr.npy", indptr.astype(np.int64))
        np.save(part / "indices.npy", indices.astype(np.int64))
        np.save(part / "indices32.npy", indices.astype(np.int32))
        np.save(part / "seeds.npy", np.random.default_rng(3).permutation(nodes).astype(np.int64))
        (part / "meta.json").write_text(json.dumps({"nodes": nodes, "edges": edges, "origin": origin}, default=str))
        part.rename(directory)
    except OSError:
        if not (directory / "meta.json").exists():  # unless another process was faster
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _degrees(spec: PowerLaw) -> np.ndarray:
    """int64 ``[nodes]``, at least ``floor``, summing to the number of edges."""
    if spec.floor * spec.nodes > spec.edges:
        raise SystemExit(f"{spec.edges} edges: expected at least {spec.floor} for each of {spec.nodes} nodes")
    generator = np.random.default_rng([spec.seed, 0])
    raw = (1.0 - generator.random(spec.nodes)) ** (-1.0 / (spec.exponent - 1.0)) - 1.0
    raw = np.minimum(raw, raw.mean() * 1000)
    spare = spec.edges - spec.floor * spec.nodes
    degrees = spec.floor + (raw * (spare / raw.sum())).astype(np.int64)
    missing = spec.edges - int(degrees.sum())  # what rounding left: less than one edge a node
    degrees[generator.permutation(spec.nodes)[:missing]] += 1
    return degrees


def _fill_rows(spec: PowerLaw, indptr: np.ndarray) -> np.ndarray:
    """int32 ``[edges]``: the neighbors of each row, sorted."""
    degrees = np.diff(indptr)
    owners = np.repeat(np.arange(spec.nodes, dtype=np.int32), degrees)  # of every edge's end
    indices = np.empty(spec.edges, np.int32)
    starts = np.searchsorted(indptr, np.arange(0, spec.edges, _CHUNK_EDGES), side="left")
    bounds = np.unique(np.append(starts, spec.nodes))
    stride = int(spec.nodes * 0.618) | 1
    while np.gcd(stride, spec.nodes) != 1:
        stride += 2
    for number, (first, last) in enumerate(itertools.pairwise(bounds)):
        low, high = indptr[first], indptr[last]
        generator = np.random.default_rng([spec.seed, 1, number])
        neighbors = owners[generator.integers(0, spec.edges, high - low)].astype(np.int64)
        near = np.flatnonzero(generator.random(high - low, dtype=np.float32) < spec.local)
        steps = generator.integers(1, spec.window + 1, near.size)
        neighbors[near] = (owners[low:high][near] + steps * stride) % spec.nodes
        keys = (owners[low:high].astype(np.int64) << 32) | neighbors
        keys.sort()
        indices[low:high] = (keys & 0xFFFFFFFF).astype(np.int32)
    return indices
