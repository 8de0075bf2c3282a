"""Supervised GraphSAGE in the worker mode: each process samples and trains, on its own node of the cluster."""

import argparse
import json
import os.path as osp

import torch
import torch.distributed
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import graphlearn_dist.glt as glt


@torch.no_grad()
def test(model, test_loader):
    model.eval()
    correct = total = 0
    for batch in test_loader:
        out = model.module(batch.x, batch.edge_index)[: batch.batch_size]
        correct += int((out.argmax(dim=-1) == batch.y[: batch.batch_size]).sum())
        total += batch.batch_size
    return correct / total


def worker_options(args, master_port, device):
    if args.mode == "collocated":
        return glt.distributed.CollocatedDistSamplingWorkerOptions(
            master_addr=args.master_addr, master_port=master_port
        )
    return glt.distributed.MpDistSamplingWorkerOptions(
        num_workers=1,
        worker_devices=[device],
        worker_concurrency=4,
        master_addr=args.master_addr,
        master_port=master_port,
        channel_size="64MB",
        pin_memory=True,
    )


def run_training_proc(local_proc_rank, args, dataset, train_idx, test_idx):
    glt.distributed.init_worker_group(
        world_size=args.num_nodes * args.num_training_procs,
        rank=args.node_rank * args.num_training_procs + local_proc_rank,
        group_name="distributed-sage-supervised-trainer",
    )
    current_ctx = glt.distributed.get_context()
    current_device = torch.device("cpu")
    torch.distributed.init_process_group(
        backend="gloo",
        rank=current_ctx.rank,
        world_size=current_ctx.world_size,
        init_method=f"tcp://{args.master_addr}:{args.training_pg_master_port}",
    )

    train_idx = train_idx.split(train_idx.size(0) // args.num_training_procs)[local_proc_rank]
    test_idx = test_idx.split(test_idx.size(0) // args.num_training_procs)[local_proc_rank]
    results = []
    for seed in args.seeds:
        torch.manual_seed(seed)
        train_loader = glt.distributed.DistNeighborLoader(
            data=dataset,
            num_neighbors=[10, 5],
            input_nodes=train_idx,
            batch_size=args.batch_size,
            shuffle=True,
            collect_features=True,
            to_device=current_device,
            random_seed=seed,
            worker_options=worker_options(args, args.train_loader_master_port, current_device),
        )
        test_loader = glt.distributed.DistNeighborLoader(
            data=dataset,
            num_neighbors=[10, 5],
            input_nodes=test_idx,
            batch_size=args.batch_size,
            shuffle=False,
            collect_features=True,
            to_device=current_device,
            worker_options=worker_options(args, args.test_loader_master_port, current_device),
        )
        model = GraphSAGE(
            in_channels=args.in_channels,
            hidden_channels=32,
            num_layers=2,
            out_channels=args.num_classes,
        ).to(current_device)
        model = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(args.epochs):
            model.train()
            for batch in train_loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size].log_softmax(dim=-1)
                loss = F.nll_loss(out, batch.y[: batch.batch_size])
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
            torch.distributed.barrier()
        results.append({"losses": losses, "score": test(model, test_loader)})
        torch.distributed.barrier()
    with open(f"{args.out}.{current_ctx.rank}", "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root_dir", type=str)
    parser.add_argument("--out", type=str)
    parser.add_argument("--mode", type=str, default="mp")
    parser.add_argument("--num_nodes", type=int, default=2)
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--num_training_procs", type=int, default=1)
    parser.add_argument("--in_channels", type=int)
    parser.add_argument("--num_classes", type=int)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--master_addr", type=str, default="localhost")
    parser.add_argument("--training_pg_master_port", type=int)
    parser.add_argument("--train_loader_master_port", type=int)
    parser.add_argument("--test_loader_master_port", type=int)
    args = parser.parse_args()

    dataset = glt.distributed.DistDataset()
    dataset.load(
        root_dir=osp.join(args.root_dir, "partitions"),
        partition_idx=args.node_rank,
        graph_mode="ZERO_COPY",
        whole_node_label_file=osp.join(args.root_dir, "label", "label.pt"),
    )
    train_idx = torch.load(osp.join(args.root_dir, "train-partitions", f"partition{args.node_rank}.pt"))
    test_idx = torch.load(osp.join(args.root_dir, "test-partitions", f"partition{args.node_rank}.pt"))
    train_idx.share_memory_()
    test_idx.share_memory_()
    torch.multiprocessing.spawn(
        run_training_proc, args=(args, dataset, train_idx, test_idx), nprocs=args.num_training_procs, join=True
    )
