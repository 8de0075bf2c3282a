"""Unsupervised GraphSAGE in the worker mode: links and their negatives, neighbors drawn by the weights of edges."""

import argparse
import json
import os.path as osp

import torch
import torch.distributed
import torch.nn.functional as F
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import graphlearn_dist.glt as glt


def roc_auc_score(target, pred):
    order = torch.cat(pred).argsort(stable=True)
    ranks = torch.empty(order.numel(), dtype=torch.float64)
    ranks[order] = torch.arange(1.0, order.numel() + 1, dtype=torch.float64)
    is_link = torch.cat(target) == 1
    num_links, num_others = int(is_link.sum()), int((~is_link).sum())
    return float((ranks[is_link].sum() - num_links * (num_links + 1) / 2) / (num_links * num_others))


@torch.no_grad()
def test(model, test_loader):
    model.eval()
    preds, targets = [], []
    for batch in test_loader:
        out = model.module(batch.x, batch.edge_index)
        out_src = out[batch.edge_label_index[0]]
        out_dst = out[batch.edge_label_index[1]]
        preds.append((out_src * out_dst).sum(dim=-1).sigmoid())
        targets.append(batch.edge_label.long())
    return roc_auc_score(targets, preds)


def make_loader(args, dataset, idx, shuffle, device, seed, port):
    return glt.distributed.DistLinkNeighborLoader(
        data=dataset,
        num_neighbors=[10, 5],
        edge_label_index=idx,
        batch_size=args.batch_size,
        with_weight=args.with_weight,
        neg_sampling="binary",
        shuffle=shuffle,
        collect_features=True,
        to_device=device,
        random_seed=seed,
        worker_options=glt.distributed.MpDistSamplingWorkerOptions(
            num_workers=1,
            worker_devices=[device],
            worker_concurrency=4,
            master_addr=args.master_addr,
            master_port=port,
            channel_size="64MB",
            pin_memory=False,
        ),
    )


def run_training_proc(local_proc_rank, args, dataset, train_idx, test_idx):
    glt.distributed.init_worker_group(
        world_size=args.num_nodes * args.num_training_procs,
        rank=args.node_rank * args.num_training_procs + local_proc_rank,
        group_name="distributed-sage-unsupervised-trainer",
    )
    current_ctx = glt.distributed.get_context()
    current_device = torch.device("cpu")
    torch.distributed.init_process_group(
        backend="gloo",
        rank=current_ctx.rank,
        world_size=current_ctx.world_size,
        init_method=f"tcp://{args.master_addr}:{args.training_pg_master_port}",
    )
    train_idx = (train_idx.T.split(train_idx.size(1) // args.num_training_procs)[local_proc_rank]).T
    test_idx = (test_idx.T.split(test_idx.size(1) // args.num_training_procs)[local_proc_rank]).T
    results = []
    for seed in args.seeds:
        torch.manual_seed(seed)
        train_loader = make_loader(args, dataset, train_idx, True, current_device, seed, args.train_loader_master_port)
        test_loader = make_loader(args, dataset, test_idx, False, current_device, None, args.test_loader_master_port)
        model = GraphSAGE(in_channels=args.in_channels, hidden_channels=32, num_layers=2, out_channels=16)
        model = DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(args.epochs):
            with Join([model]):
                model.train()
                for batch in train_loader:
                    optimizer.zero_grad()
                    out = model(batch.x, batch.edge_index)
                    out_src = out[batch.edge_label_index[0]]
                    out_dst = out[batch.edge_label_index[1]]
                    pred = (out_src * out_dst).sum(dim=-1)
                    loss = F.binary_cross_entropy_with_logits(pred, batch.edge_label)
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
    parser.add_argument("--num_nodes", type=int, default=2)
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--num_training_procs", type=int, default=1)
    parser.add_argument("--in_channels", type=int)
    parser.add_argument("--with_weight", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=64)
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
        graph_mode="CPU",
    )
    train_idx = torch.load(osp.join(args.root_dir, "train-partitions", f"partition{args.node_rank}.pt"))
    test_idx = torch.load(osp.join(args.root_dir, "test-partitions", f"partition{args.node_rank}.pt"))
    torch.multiprocessing.spawn(
        run_training_proc,
        args=(args, dataset, train_idx.share_memory_(), test_idx.share_memory_()),
        nprocs=args.num_training_procs,
        join=True,
    )
