"""Data sets of tables, whole and partitioned by the processes that read their parts."""

from __future__ import annotations

import multiprocessing
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.utils.system.ports import reserved_port
from tests.support.processes import start

HERE = "tests.unit.glt.test_table_dataset"
DEADLINE_S = 120.0  # only ever reached by a hang
NUM_NODES = 20
RING = [(v, (v + 1) % NUM_NODES, v) for v in range(NUM_NODES)]
ROWS = [(v, f"{v}:{v + 0.5}") for v in reversed(range(NUM_NODES))]
TO = ("user", "to", "item")


def test_homogeneous() -> None:
    dataset = glt.data.TableDataset()
    dataset.load(
        {("v", "e", "v"): RING}, {"v": ROWS}, graph_mode="CPU", label=torch.arange(NUM_NODES), reader_threads=2
    )
    loader = glt.loader.NeighborLoader(dataset, [1], torch.arange(NUM_NODES), batch_size=5)
    for batch in loader:
        assert torch.equal(batch.x[:, 0], batch.node.float())
        assert torch.equal(batch.y, batch.node)
    assert dataset.get_node_types() is None
    sent = multiprocessing.reduction.ForkingPickler.loads(multiprocessing.reduction.ForkingPickler.dumps(dataset))
    assert type(sent) is glt.data.TableDataset
    assert torch.equal(sent.get_node_feature()[torch.tensor([3])], torch.tensor([[3.0, 3.5]]))


def test_typed() -> None:
    dataset = glt.data.TableDataset()
    dataset.load({TO: RING}, {"user": ROWS, "item": ROWS[::2]}, graph_mode="CPU")  # items of odd ids alone
    assert sorted(dataset.get_node_types()) == ["item", "user"]
    assert torch.equal(dataset.get_node_feature("item")[torch.tensor([19, 1])][:, 0], torch.tensor([19.0, 1.0]))


@pytest.mark.parametrize(
    ("edges", "nodes", "message"),
    [
        ({TO: [(0,)]}, {"user": ROWS}, r"edge_tables\[.*\]: expected columns of sources and targets, got 1 columns"),
        ({TO: RING}, {"user": RING}, r"node_tables\['user'\]: expected columns of ids and features, got 3 columns"),
        ({TO: RING}, {"user": [*ROWS, ROWS[0]]}, r"node_tables\['user'\]: expected distinct ids, got 19"),
        ({TO: RING}, None, "node_tables: expected tables by type, got NoneType"),
    ],
)
def test_what_does_not_fit(edges: Any, nodes: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        glt.data.TableDataset().load(edges, nodes)


def run(rank: int, port: int, folder: str, typed: bool) -> int:
    """One of two ranks: reads its part, and samples over both partitions."""
    nodes = {"user": ROWS, "item": f"{folder}/items.csv"} if typed else {"v": f"{folder}/items.csv"}
    labels = torch.arange(NUM_NODES)
    dataset = glt.distributed.DistTableDataset()
    dataset.load(
        num_partitions=2,
        partition_idx=rank,
        edge_tables={TO if typed else ("v", "e", "v"): lambda part, parts: RING[part::parts]},
        node_tables=nodes,
        num_nodes={"user": NUM_NODES, "item": NUM_NODES} if typed else NUM_NODES,
        graph_mode="CPU",
        label={"user": labels} if typed else labels,
        master_addr="localhost",
        master_port=port,
    )
    seeds = ("user", torch.arange(NUM_NODES)) if typed else torch.arange(NUM_NODES)
    loader = glt.distributed.DistNeighborLoader(dataset, [1], seeds, batch_size=5, collect_features=True)
    count = 0
    for batch in loader:
        for store in batch.node_stores:
            assert torch.equal(store.x[:, 0], store.node.float())
        store = batch["user"] if typed else batch
        assert torch.equal(store.y, store.node)
        count += 1
    loader.shutdown()
    glt.distributed.shutdown_rpc()
    return count


@pytest.mark.parametrize("typed", [False, True])
def test_partitioned(typed: bool, tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("".join(f"{v},{feature}\n" for v, feature in ROWS))
    with ExitStack() as stack:
        port = stack.enter_context(reserved_port())
        arguments = {"port": port, "folder": str(tmp_path), "typed": typed}
        ranks = [stack.enter_context(start(f"{HERE}.run", rank=rank, **arguments)) for rank in range(2)]
        assert [rank.wait(DEADLINE_S) for rank in ranks] == [4, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["items.csv"]
