"""Every public door that takes a path refuses what is none, by the argument's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import DistEmbedding
from graphlearn_dist.cluster import read_hosts
from graphlearn_dist.data import GraphSource
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.glt import utils as glt_utils
from graphlearn_dist.inference import open_results, write_results
from graphlearn_dist.inference.pairs import load_pairs
from graphlearn_dist.partition import (
    RangePartitioner,
    build_partition_feature,
    describe,
    load_feature_partition_data,
    load_graph_partition_data,
    load_partition,
    load_partition_layout,
    partition_file,
    partition_quality,
    repartition,
    save_edge_pb,
    save_meta,
    save_node_order,
    save_node_pb,
    verify,
)
from graphlearn_dist.tables import IdMap, build
from graphlearn_dist.telemetry.timeline import read_trace

EDGES = torch.tensor([[0, 1], [1, 0]])
MODEL = torch.nn.Linear(1, 1)
TABLES = {"edges": [{"files": "e.csv", "source_id_col": "a", "dest_id_col": "b"}]}
DOORS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "build": ("output_dir", lambda path: build(TABLES, path, num_parts=2)),
    "build_partition_feature": ("root_dir", lambda path: build_partition_feature(path, 0)),
    "describe": ("root_dir", describe),
    "DistDataset.load": ("root_dir", lambda path: DistDataset().load(path, 0)),
    "DistEmbedding.from_checkpoint": ("directory", DistEmbedding.from_checkpoint),
    "ensure_dir": ("dir_path", glt_utils.ensure_dir),
    "GraphSource.from_npz": ("path", GraphSource.from_npz),
    "IdMap": ("directory", IdMap),
    "load_ckpt": ("ckpt_dir", lambda path: glt_utils.load_ckpt(0, path, MODEL)),
    "load_feature_partition_data": ("feature_data_dir", load_feature_partition_data),
    "load_graph_partition_data": ("graph_data_dir", load_graph_partition_data),
    "load_pairs": ("path", load_pairs),
    "load_partition": ("root_dir", lambda path: load_partition(path, 0)),
    "load_partition_layout": ("root_dir", load_partition_layout),
    "open_results": ("directory", open_results),
    "partition_file": ("path", lambda path: partition_file(path, "there", num_parts=2)),
    "partition_quality": ("root_dir", partition_quality),
    "RangePartitioner": ("output_dir", lambda path: RangePartitioner(path, 2, 2, EDGES)),
    "read_hosts": ("path", read_hosts),
    "read_trace": ("path", read_trace),
    "repartition": ("root_dir", lambda path: repartition(path, "there", num_parts=2)),
    "save_ckpt": ("ckpt_dir", lambda path: glt_utils.save_ckpt(0, path, MODEL)),
    "save_edge_pb": ("output_dir", lambda path: save_edge_pb(path, torch.zeros(2, dtype=torch.int64))),
    "save_meta": ("output_dir", lambda path: save_meta(path, 2, "homo")),
    "save_node_order": ("root_dir", lambda path: save_node_order(path, {})),
    "save_node_pb": ("output_dir", lambda path: save_node_pb(path, torch.zeros(2, dtype=torch.int64))),
    "verify": ("root_dir", verify),
    "write_results": ("out", lambda path: write_results(path, {None: torch.zeros(2, 2)})),
}


@pytest.mark.parametrize("given", [None, 5, "", "a\0b"], ids=["None", "number", "empty", "NUL"])
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_path_is_refused(door: str, given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, call = DOORS[door]
    with pytest.raises(InvalidArgumentError, match=f"^{name}: expected a path, got "):
        call(given)
    assert not list(tmp_path.iterdir())
