"""Enclosing subgraphs of links (as SEAL takes them): sampled by two workers, told apart by a GNN over each."""

import argparse
import json
import os.path as osp

import torch
import torch.distributed
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GCNConv

import graphlearn_dist.glt as glt


class SubGraphNet(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels):
        super().__init__()
        self.conv1 = GCNConv(in_channels + 2, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, hidden_channels)
        self.lin = torch.nn.Linear(hidden_channels, 1)

    def forward(self, subgraphs):
        preds = []
        for x, edge_index, mapping in subgraphs:
            x = self.conv1(x, edge_index).relu()
            x = self.conv2(x, edge_index).relu()
            preds.append(self.lin(x[mapping[0]] * x[mapping[1]]))
        return torch.cat(preds)


def roc_auc_score(target, pred):
    order = torch.cat(pred).argsort(stable=True)
    ranks = torch.empty(order.numel(), dtype=torch.float64)
    ranks[order] = torch.arange(1.0, order.numel() + 1, dtype=torch.float64)
    is_link = torch.cat(target) == 1
    num_links, num_others = int(is_link.sum()), int((~is_link).sum())
    return float((ranks[is_link].sum() - num_links * (num_links + 1) / 2) / (num_links * num_others))


def without_target_link(batch):
    src, dst = batch.mapping.tolist()
    edge_index = batch.edge_index
    mask1 = (edge_index[0] != src) | (edge_index[1] != dst)
    mask2 = (edge_index[0] != dst) | (edge_index[1] != src)
    z = torch.zeros(batch.node.size(0), 2)
    z[[src, dst], [0, 1]] = 1
    return torch.cat([batch.x, z], dim=1), edge_index[:, mask1 & mask2], batch.mapping


def make_loader(args, dataset, links, port):
    # Each batch of two seeds is the subgraph of one link.
    return glt.distributed.DistSubGraphLoader(
        data=dataset,
        input_nodes=links.T.reshape(-1),
        num_neighbors=[5, 3],
        batch_size=2,
        shuffle=False,
        collect_features=True,
        worker_options=glt.distributed.MpDistSamplingWorkerOptions(
            num_workers=1, master_addr=args.master_addr, master_port=port, channel_size="64MB"
        ),
    )


def main(args, dataset, train, test):
    glt.distributed.init_worker_group(args.num_nodes, args.node_rank, "distributed-seal-trainer")
    torch.distributed.init_process_group(
        backend="gloo",
        rank=args.node_rank,
        world_size=args.num_nodes,
        init_method=f"tcp://{args.master_addr}:{args.training_pg_master_port}",
    )
    loaders = {
        name: make_loader(args, dataset, part["links"], port)
        for name, part, port in (
            ("train", train, args.train_loader_master_port),
            ("test", test, args.test_loader_master_port),
        )
    }
    subgraphs = {}
    for name, part in (("train", train), ("test", test)):
        subgraphs[name] = []
        for link, batch in zip(part["links"].T, loaders[name], strict=True):
            assert torch.equal(batch.node[batch.mapping], link)
            assert torch.equal(batch.node, batch.node.sort().values)
            subgraphs[name].append(without_target_link(batch))
    results = []
    for seed in args.seeds:
        torch.manual_seed(seed)
        model = DistributedDataParallel(SubGraphNet(args.in_channels, 32))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(args.epochs):
            model.train()
            for chunk in torch.randperm(len(subgraphs["train"])).split(8):
                optimizer.zero_grad()
                pred = model([subgraphs["train"][i] for i in chunk.tolist()])
                loss = F.binary_cross_entropy_with_logits(pred, train["label"][chunk])
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
        model.eval()
        with torch.no_grad():
            preds = model.module(subgraphs["test"])
        results.append({"losses": losses, "score": roc_auc_score([test["label"]], [preds])})
        torch.distributed.barrier()
    for loader in loaders.values():
        loader.shutdown()
    with open(f"{args.out}.{args.node_rank}", "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root_dir", type=str)
    parser.add_argument("--out", type=str)
    parser.add_argument("--num_nodes", type=int, default=2)
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--in_channels", type=int)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--master_addr", type=str, default="localhost")
    parser.add_argument("--training_pg_master_port", type=int)
    parser.add_argument("--train_loader_master_port", type=int)
    parser.add_argument("--test_loader_master_port", type=int)
    args = parser.parse_args()

    dataset = glt.distributed.DistDataset()
    dataset.load(root_dir=osp.join(args.root_dir, "partitions"), partition_idx=args.node_rank, graph_mode="CPU")
    links = torch.load(osp.join(args.root_dir, "links.pt"))
    main(args, dataset, links["train"][args.node_rank], links["test"][args.node_rank])
