"""A typed graph as tables, and as a partitioner takes it in memory: users have texts as ids, items large numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from graphlearn_dist.partition import RandomPartitioner
from graphlearn_dist.tables import TablesConfig
from graphlearn_dist.tables.buckets import Budget
from graphlearn_dist.tables.build import build_with

BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
STRATEGY = {"in": "by_dst", "out": "by_src"}
AMPLE, SCARCE = 1 << 28, 1 << 16


@dataclass(frozen=True)
class Shop:
    """Columns of the tables; ``source`` and ``target`` are rows of users and items."""

    users: dict[str, Any]
    items: dict[str, Any]
    buys: dict[str, Any]
    source: np.ndarray[Any, Any]
    target: np.ndarray[Any, Any]

    @classmethod
    def make(cls, num_users: int = 53, num_items: int = 31, num_edges: int = 900) -> Shop:
        random = np.random.default_rng(3)
        source = random.integers(0, num_users, num_edges)
        target = random.integers(0, num_items, num_edges)
        target[: num_edges // 2] = 7  # one row with more edges than scarce memory holds
        users = {
            "name": np.array([f"user-{number:x}" for number in random.permutation(1 << 12)[:num_users]]),
            "age": random.integers(18, 90, num_users),
            "taste": list(random.normal(size=(num_users, 3)).astype(np.float32)),
            "group": random.choice(np.array(["low", "high", "middle"]), num_users),
        }
        items = {
            "code": random.permutation(10 * num_items)[:num_items] * 10**11 - 10**12,
            "price": random.random(num_items),
        }
        buys = {
            "user": users["name"][source],
            "item": items["code"][target],
            "amount": random.random(num_edges).astype(np.float32),
            "day": random.integers(0, 50, num_edges),
            "stars": random.integers(1, 6, num_edges).astype(np.float32),
        }
        return cls(users, items, buys, source, target)

    def write(self, folder: Path, *, files: int = 1, group: int = 1000) -> None:
        """Writes Parquet files ``users*``, ``items*`` and ``buys*``."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("users", "items", "buys"):
            columns = getattr(self, name)
            count = len(next(iter(columns.values())))
            for i in range(files):
                part = slice(count * i // files, count * (i + 1) // files)
                table = pa.table({key: pa.array(column[part]) for key, column in columns.items()})
                pq.write_table(table, folder / f"{name}-{i:03}.parquet", row_group_size=group)

    def config(self, folder: Path) -> dict[str, Any]:
        return {
            "nodes": [
                {
                    "node_type": "user",
                    "node_id_col": "name",
                    "files": f"{folder}/users-*.parquet",
                    "features": [{"feature_col": ["age", "taste"]}],
                    "labels": [{"label_col": "group", "split_pct": [0.5, 0.25, 0.25]}],
                },
                {
                    "node_type": "item",
                    "node_id_col": "code",
                    "files": [f"{folder}/items-*.parquet"],
                    "features": [{"feature_col": "price", "feature_name": "price"}],
                },
            ],
            "edges": [
                {
                    "relation": list(BUYS),
                    "source_id_col": "user",
                    "dest_id_col": "item",
                    "files": f"{folder}/buys-*.parquet",
                    "weight_col": "amount",
                    "time_col": "day",
                    "features": [{"feature_col": ["stars"]}],
                    "reverse": True,
                }
            ],
        }

    def partitioner(self, directory: Path, parts: int, edge_dir: str) -> RandomPartitioner:
        """The same graph in memory."""
        users, items = np.argsort(self.users["name"]), np.argsort(self.items["code"])
        edge_index = torch.from_numpy(np.stack([rank(users)[self.source], rank(items)[self.target]]))
        features = np.column_stack([self.users["age"], np.stack(self.users["taste"])]).astype(np.float32)[users]
        labels = np.searchsorted(["high", "low", "middle"], self.users["group"])[users]
        amount, day, stars = (torch.from_numpy(self.buys[name]) for name in ("amount", "day", "stars"))
        return RandomPartitioner(
            directory,
            parts,
            {"user": len(users), "item": len(items)},
            {BUYS: edge_index, BOUGHT: edge_index.flip(0)},
            node_feat={"user": torch.from_numpy(features)},
            node_labels={"user": torch.from_numpy(labels)},
            node_attrs={"item": {"price": torch.from_numpy(self.items["price"][items].astype(np.float32)[:, None])}},
            edge_weights={BUYS: amount, BOUGHT: amount},
            edge_times={BUYS: day, BOUGHT: day},
            edge_feat={BUYS: stars[:, None], BOUGHT: stars[:, None]},
            edge_assign_strategy=STRATEGY[edge_dir],
        )


def rank(order: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The inverse of a permutation."""
    out = np.empty_like(order)
    out[order] = np.arange(len(order))
    return out


def make(
    config: Any,
    directory: Path,
    *,
    parts: int = 2,
    edge_dir: str = "in",
    working: int = AMPLE,
    threads: int = 2,
    kind: str = "random",
    **more: Any,
) -> Path:
    """Builds within ``working`` bytes, which may be fewer than a user can ask for."""
    options = {"num_parts": parts, "kind": kind, "edge_dir": edge_dir, "seed": 0}
    return build_with(TablesConfig.load(config), directory, options, Budget(working, threads), **more)


def meta_of(directory: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((directory / "META.json").read_text())
    return meta


def arrays_of(directory: Path) -> dict[str, Any]:
    """What META.json says of each file, checksums included."""
    return {entry["path"]: entry for entry in meta_of(directory)["files"]}


def assert_same_graph(built: Path, reference: Path) -> None:
    """All files of the reference are there, bit for bit, and beside them splits and degrees alone."""
    expected, found = arrays_of(reference), arrays_of(built)
    assert {path: found.get(path) for path in expected} == expected
    more = set(found) - set(expected)
    assert all(path.startswith("node_split/") or path.endswith("/degree.npy") for path in more), more
    for path in found:
        assert (built / path).stat().st_size == found[path]["bytes"]
    first, second = meta_of(built), meta_of(reference)
    for key in ("version", "num_parts", "data_cls", "edge_dir", "nodes", "edges"):
        assert first[key] == second[key]
