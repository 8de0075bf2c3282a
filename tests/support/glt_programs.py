"""Programs in the shape that GraphLearn-for-PyTorch gave them: those of its users differ in their import lines only.

Each function is what a program's processes run; it returns what a test wants to see of the batches.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

import graphlearn_dist as glt

DEVICE = torch.device("cpu")


def partition(root: str, num_parts: int, graph: dict[str, Any]) -> None:
    """Offline: a partition directory."""
    glt.partition.RandomPartitioner(
        output_dir=root,
        num_parts=num_parts,
        num_nodes=graph["num_nodes"],
        edge_index=graph["edge_index"],
        node_feat=graph["node_feat"],
        node_feat_dtype=torch.float32,
        edge_assign_strategy="by_src",
        chunk_size=10000,
        node_labels=graph["node_labels"],
    ).partition()


def run_server(root: str, num_servers: int, num_clients: int, rank: int, port: int) -> None:
    """A server of the server-client mode."""
    dataset = glt.distributed.DistDataset()
    dataset.load(root_dir=root, partition_idx=rank, graph_mode="CPU")
    glt.distributed.init_server(
        num_servers=num_servers,
        num_clients=num_clients,
        server_rank=rank,
        dataset=dataset,
        master_addr="localhost",
        master_port=port,
        num_rpc_threads=16,
    )
    glt.distributed.wait_and_shutdown_server()


def run_client(seed_file: str, node_type: str | None, num_servers: int, num_clients: int, port: int) -> dict[str, Any]:
    """A client: the seeds are in a file, and servers sample, each for its share of the clients."""
    glt.distributed.init_client(
        num_servers=num_servers,
        num_clients=num_clients,
        client_rank=0,
        master_addr="localhost",
        master_port=port,
        num_rpc_threads=4,
    )
    meta = glt.distributed.request_server(0, glt.distributed.DistServer.get_dataset_meta)
    train_idx = torch.load(seed_file, weights_only=True)
    loader = glt.distributed.DistNeighborLoader(
        data=None,
        num_neighbors=[3, 2],
        input_nodes=train_idx if node_type is None else (node_type, train_idx),
        batch_size=16,
        shuffle=True,
        drop_last=False,
        collect_features=True,
        to_device=DEVICE,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(
            server_rank=list(range(num_servers)),
            num_workers=1,
            worker_devices=[DEVICE],
            worker_concurrency=4,
            master_addr="localhost",
            master_port=port,
            buffer_size="16MB",
            prefetch_size=2,
        ),
    )
    seen = loop(loader, node_type)
    glt.distributed.shutdown_client()
    return {"meta": [meta[0], meta[1], list(meta[2])], "seen": seen}


def run_worker(roots: dict[str, str], seed_files: dict[str, str], world_size: int, rank: int, ports: list[int]) -> Any:
    """A worker of the multiprocessing mode: one program over a homogeneous graph, then over a typed one."""
    glt.distributed.init_worker_group(world_size=world_size, rank=rank, group_name="distributed-sage")
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(ports[0]))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    seen = {}
    for kind, root in roots.items():
        dataset = glt.distributed.DistDataset()
        dataset.load(root_dir=root, partition_idx=rank, graph_mode="CPU")
        train_idx = torch.load(seed_files[kind], weights_only=True)
        train_idx = train_idx.split(train_idx.size(0) // world_size)[rank]
        loader = glt.distributed.DistNeighborLoader(
            dataset,
            [3, 2],
            train_idx if kind == "homogeneous" else ("user", train_idx),
            batch_size=16,
            shuffle=True,
            collect_features=True,
            to_device=DEVICE,
            worker_options=glt.distributed.MpDistSamplingWorkerOptions(
                num_workers=1,
                worker_devices=[DEVICE],
                worker_concurrency=4,
                master_addr="localhost",
                master_port=ports[1],
                channel_size="16MB",
                pin_memory=False,
            ),
        )
        seen[kind] = loop(loader, None if kind == "homogeneous" else "user")
    return seen


def loop(loader: Any, node_type: str | None) -> list[list[int]]:
    """Two epochs, as a training loop reads its batches; the seeds of each epoch."""
    epochs = []
    for _ in range(2):
        seeds: list[int] = []
        for batch in loader:
            store = batch if node_type is None else batch[node_type]
            assert torch.equal(store.node[: store.batch_size], store.n_id[: store.batch_size])
            assert torch.equal(store.x[:, 0], store.node.float())
            assert torch.equal(store.y[: store.batch_size], store.node[: store.batch_size])
            check_edges(batch, node_type)
            seeds += store.node[: store.batch_size].tolist()
        epochs.append(seeds)
        if dist.is_initialized():
            dist.barrier()
    return epochs


def check_edges(batch: Any, node_type: str | None) -> None:
    """Messages run from neighbor to seed: from v + 1 or v + 2 to v in all these graphs, modulo their size."""
    typed = {(None,) * 3: batch.edge_index} if node_type is None else batch.edge_index_dict
    for (source, _, target), (row, col) in typed.items():
        senders, receivers = (batch.node if kind is None else batch[kind].node for kind in (source, target))
        distance = (senders[row] - receivers[col]) % NUM_NODES
        assert bool(((distance == 1) | (distance == 2)).all())


NUM_NODES = 60
