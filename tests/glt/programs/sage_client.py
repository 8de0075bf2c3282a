"""A client of the server-client mode: trains on what two servers sample from lists of seeds that they hold."""

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


@torch.no_grad()
def test(model, test_loader):
    model.eval()
    correct = total = 0
    for batch in test_loader:
        out = model.module(batch.x, batch.edge_index)[: batch.batch_size]
        correct += int((out.argmax(dim=-1) == batch.y[: batch.batch_size]).sum())
        total += batch.batch_size
    return correct / total


def make_loader(path_list, server_rank_list, num_workers, device, shuffle, key, args, port):
    return glt.distributed.DistNeighborLoader(
        data=None,
        num_neighbors=[10, 5],
        input_nodes=path_list,
        batch_size=args.batch_size,
        shuffle=shuffle,
        collect_features=True,
        to_device=device,
        worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(
            server_rank=server_rank_list,
            num_workers=num_workers,
            worker_devices=[torch.device("cpu") for _ in range(num_workers)],
            worker_concurrency=4,
            master_addr=args.master_addr,
            master_port=port,
            buffer_size="64MB",
            prefetch_size=2,
            worker_key=key,
        ),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root_dir", type=str)
    parser.add_argument("--out", type=str)
    parser.add_argument("--num_servers", type=int, default=2)
    parser.add_argument("--num_clients", type=int, default=2)
    parser.add_argument("--client_rank", type=int, default=0)
    parser.add_argument("--in_channels", type=int)
    parser.add_argument("--num_classes", type=int)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--master_addr", type=str, default="localhost")
    parser.add_argument("--server_client_master_port", type=int)
    parser.add_argument("--training_pg_master_port", type=int)
    parser.add_argument("--train_loader_master_port", type=int)
    parser.add_argument("--test_loader_master_port", type=int)
    args = parser.parse_args()

    glt.distributed.init_client(
        num_servers=args.num_servers,
        num_clients=args.num_clients,
        client_rank=args.client_rank,
        master_addr=args.master_addr,
        master_port=args.server_client_master_port,
        num_rpc_threads=4,
        client_group_name="dist-train-supervised-sage-client",
    )
    current_ctx = glt.distributed.get_context()
    current_device = torch.device("cpu")
    torch.distributed.init_process_group(
        backend="gloo",
        rank=current_ctx.rank,
        world_size=current_ctx.world_size,
        init_method=f"tcp://{args.master_addr}:{args.training_pg_master_port}",
    )

    server_rank_list = list(range(args.num_servers))
    server_device_count = glt.distributed.request_server(server_rank=server_rank_list[0], func=torch.cuda.device_count)
    num_workers = max(1, server_device_count)  # on the CPU
    paths = {
        name: [osp.join(args.root_dir, f"{name}-partitions", f"partition{i}.pt") for i in server_rank_list]
        for name in ("train", "test")
    }
    results = []
    for seed in args.seeds:
        torch.manual_seed(seed)
        train_loader = make_loader(
            paths["train"],
            server_rank_list,
            num_workers,
            current_device,
            True,
            "train",
            args,
            args.train_loader_master_port,
        )
        test_loader = make_loader(
            paths["test"],
            server_rank_list,
            num_workers,
            current_device,
            False,
            "test",
            args,
            args.test_loader_master_port,
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
            with Join([model]):
                for batch in train_loader:
                    optimizer.zero_grad()
                    out = model(batch.x, batch.edge_index)[: batch.batch_size].log_softmax(dim=-1)
                    loss = F.nll_loss(out, batch.y[: batch.batch_size])
                    loss.backward()
                    optimizer.step()
                    losses.append(float(loss))
            torch.distributed.barrier()
        results.append({"losses": losses, "score": test(model, test_loader)})
        train_loader.shutdown()
        test_loader.shutdown()
        torch.distributed.barrier()

    glt.distributed.shutdown_client()
    with open(f"{args.out}.{args.client_rank}", "w") as out:
        json.dump({"device_count": server_device_count, "results": results}, out)
