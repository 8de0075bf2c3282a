"""A relational GNN over a large typed graph, scaled down: layers trimmed to hops, checkpoints, two loaders at once."""

import argparse
import datetime
import json
import os.path as osp

import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.utils import trim_to_layer

import graphlearn_dist.glt as glt


class RGNN(torch.nn.Module):
    def __init__(self, etypes, in_dim, h_dim, out_dim, num_layers, node_type, with_trim):
        super().__init__()
        self.node_type, self.with_trim = node_type, with_trim
        self.lin = torch.nn.Linear(h_dim, out_dim)
        self.convs = torch.nn.ModuleList(
            [
                HeteroConv({etype: SAGEConv(in_dim if i == 0 else h_dim, h_dim, root_weight=True) for etype in etypes})
                for i in range(num_layers)
            ]
        )

    def forward(self, x_dict, edge_index_dict, num_sampled_edges_dict=None, num_sampled_nodes_dict=None):
        for i, conv in enumerate(self.convs):
            if self.with_trim:
                x_dict, edge_index_dict, _ = trim_to_layer(
                    layer=i,
                    num_sampled_nodes_per_hop=num_sampled_nodes_dict,
                    num_sampled_edges_per_hop=num_sampled_edges_dict,
                    x=x_dict,
                    edge_index=edge_index_dict,
                )
            x_dict = {key: x.relu() for key, x in conv(x_dict, edge_index_dict).items()}
        return self.lin(x_dict[self.node_type])


def predict(model, batch):
    return model(
        batch.x_dict,
        batch.edge_index_dict,
        num_sampled_nodes_dict=batch.num_sampled_nodes,
        num_sampled_edges_dict=batch.num_sampled_edges,
    )[: batch["paper"].batch_size]


def evaluate(model, dataloader):
    correct = total = 0
    with torch.no_grad():
        for batch in dataloader:
            out = predict(model, batch)
            correct += int((out.argmax(1) == batch["paper"].y[: batch["paper"].batch_size]).sum())
            total += batch["paper"].batch_size
    return correct / total


def make_loader(args, dataset, idx, shuffle, device, seed, port):
    return glt.distributed.DistNeighborLoader(
        data=dataset,
        num_neighbors=[int(fanout) for fanout in args.fan_out.split(",")],
        input_nodes=("paper", idx),
        batch_size=args.batch_size,
        shuffle=shuffle,
        drop_last=False,
        edge_dir=args.edge_dir,
        collect_features=True,
        to_device=device,
        random_seed=seed,
        worker_options=glt.distributed.MpDistSamplingWorkerOptions(
            num_workers=1,
            worker_devices=device,
            worker_concurrency=4,
            master_addr=args.master_addr,
            master_port=port,
            channel_size="64MB",
            pin_memory=True,
            rpc_timeout=args.rpc_timeout,
            num_rpc_threads=2,
        ),
    )


def run_training_proc(local_proc_rank, args, dataset, train_idx, val_idx):
    rank = args.node_rank * args.num_training_procs + local_proc_rank
    world_size = args.num_nodes * args.num_training_procs
    glt.distributed.init_worker_group(world_size=world_size, rank=rank, group_name="distributed-igbh-trainer")
    current_ctx = glt.distributed.get_context()
    current_device = torch.device("cpu")
    torch.distributed.init_process_group(
        backend="gloo",
        timeout=datetime.timedelta(seconds=args.rpc_timeout),
        rank=current_ctx.rank,
        world_size=current_ctx.world_size,
        init_method=f"tcp://{args.master_addr}:{args.training_pg_master_port}",
    )
    train_idx = train_idx.split(train_idx.size(0) // args.num_training_procs)[local_proc_rank]
    val_idx = val_idx.split(val_idx.size(0) // args.num_training_procs)[local_proc_rank]
    results = []
    for seed in args.seeds:
        glt.utils.common.seed_everything(seed)
        train_loader = make_loader(args, dataset, train_idx, True, current_device, seed, args.train_loader_master_port)
        val_loader = make_loader(args, dataset, val_idx, False, current_device, seed, args.val_loader_master_port)
        model = RGNN(
            etypes=[glt.reverse_edge_type(e) if args.edge_dir == "out" else e for e in dataset.get_edge_types()],
            in_dim=dataset.node_features["paper"].shape[1],
            h_dim=32,
            out_dim=args.num_classes,
            num_layers=2,
            node_type="paper",
            with_trim=True,
        ).to(current_device)
        model = DistributedDataParallel(model, find_unused_parameters=True)
        loss_fcn = torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses, ckpt_dir = [], f"{args.out}.ckpt.{seed}"
        for epoch in range(args.epochs):
            model.train()
            for batch in train_loader:
                out = predict(model, batch)
                loss = loss_fcn(out, batch["paper"].y[: batch["paper"].batch_size])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
            torch.distributed.barrier()
            if rank == 0:
                glt.utils.common.save_ckpt(epoch, ckpt_dir, model.module, optimizer, epoch + 1)
            torch.distributed.barrier()
        model.eval()
        score = evaluate(model.module, val_loader)
        assert glt.utils.common.load_ckpt(args.epochs - 1, ckpt_dir, model.module, optimizer) == args.epochs
        results.append({"losses": losses, "score": score})
        torch.distributed.barrier()
    with open(f"{args.out}.{rank}", "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root_dir", type=str)
    parser.add_argument("--out", type=str)
    parser.add_argument("--num_classes", type=int)
    parser.add_argument("--fan_out", type=str, default="8,4")
    parser.add_argument("--edge_dir", type=str, default="out")
    parser.add_argument("--num_nodes", type=int, default=2)
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--num_training_procs", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[42])
    parser.add_argument("--rpc_timeout", type=int, default=180)
    parser.add_argument("--master_addr", type=str, default="localhost")
    parser.add_argument("--training_pg_master_port", type=int)
    parser.add_argument("--train_loader_master_port", type=int)
    parser.add_argument("--val_loader_master_port", type=int)
    args = parser.parse_args()

    dataset = glt.distributed.DistDataset(edge_dir=args.edge_dir)
    dataset.load(
        root_dir=osp.join(args.root_dir, "partitions"),
        partition_idx=args.node_rank,
        graph_mode="CPU",
        input_layout="COO",
        feature_with_gpu=False,
        whole_node_label_file={"paper": osp.join(args.root_dir, "label", "label.pt")},
    )
    parts = [
        torch.load(osp.join(args.root_dir, f"{name}-partitions", f"partition{args.node_rank}.pt")).share_memory_()
        for name in ("train", "test")
    ]
    torch.multiprocessing.spawn(
        run_training_proc, args=(args, dataset, *parts), nprocs=args.num_training_procs, join=True
    )
