"""Links between users and items in the worker mode, sampled along out-edges: they come under the reversed edge type."""

import argparse
import json
import os.path as osp

import torch
import torch.distributed
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import SAGEConv

import graphlearn_dist.glt as glt

EDGE_DIR = "out"
TO, REV = ("user", "to", "item"), ("item", "rev_to", "user")
BATCH_EDGE_TYPE = TO if EDGE_DIR == "in" else REV


class Model(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels):
        super().__init__()
        self.user = SAGEConv((in_channels, in_channels), hidden_channels)
        self.item = SAGEConv((in_channels, in_channels), hidden_channels)
        self.user_out = torch.nn.Linear(hidden_channels, 16)
        self.item_out = torch.nn.Linear(hidden_channels, 16)

    def forward(self, x_dict, edge_index_dict, edge_label_index):
        user = self.user((x_dict["item"], x_dict["user"]), edge_index_dict[REV]).relu()
        item = self.item((x_dict["user"], x_dict["item"]), edge_index_dict[TO]).relu()
        user, item = self.user_out(user), self.item_out(item)
        src, dst = (item, user) if EDGE_DIR == "out" else (user, item)
        row, col = edge_label_index
        return (src[row] * dst[col]).sum(dim=-1)


def roc_auc_score(target, pred):
    order = torch.cat(pred).argsort(stable=True)
    ranks = torch.empty(order.numel(), dtype=torch.float64)
    ranks[order] = torch.arange(1.0, order.numel() + 1, dtype=torch.float64)
    is_link = torch.cat(target) == 1
    num_links, num_others = int(is_link.sum()), int((~is_link).sum())
    return float((ranks[is_link].sum() - num_links * (num_links + 1) / 2) / (num_links * num_others))


def predict(model, batch):
    return model(batch.x_dict, batch.edge_index_dict, batch[BATCH_EDGE_TYPE].edge_label_index)


def make_loader(args, dataset, idx, shuffle, seed, port):
    return glt.distributed.DistLinkNeighborLoader(
        dataset,
        [8, 4],
        args.batch_size,
        (TO, idx),
        None,
        glt.sampler.NegativeSampling("binary", 1),
        shuffle,
        edge_dir=EDGE_DIR,
        collect_features=True,
        random_seed=seed,
        worker_options=glt.distributed.CollocatedDistSamplingWorkerOptions(args.master_addr, port, 2),
    )


def main(args, dataset, train_idx, test_idx):
    glt.distributed.init_worker_group(args.num_nodes, args.node_rank, "distributed-bipartite-trainer")
    torch.distributed.init_process_group(
        backend="gloo",
        rank=args.node_rank,
        world_size=args.num_nodes,
        init_method=f"tcp://{args.master_addr}:{args.training_pg_master_port}",
    )
    results = []
    for seed in args.seeds:
        torch.manual_seed(seed)
        train_loader = make_loader(args, dataset, train_idx, True, seed, args.train_loader_master_port)
        test_loader = make_loader(args, dataset, test_idx, False, None, args.test_loader_master_port)
        model = DistributedDataParallel(Model(args.in_channels, 32))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(args.epochs):
            model.train()
            for batch in train_loader:
                optimizer.zero_grad()
                loss = F.binary_cross_entropy_with_logits(predict(model, batch), batch[BATCH_EDGE_TYPE].edge_label)
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
        model.eval()
        preds, targets = [], []
        with torch.no_grad():
            for batch in test_loader:
                preds.append(predict(model.module, batch).sigmoid())
                targets.append(batch[BATCH_EDGE_TYPE].edge_label.long())
        score = roc_auc_score(targets, preds)
        results.append({"losses": losses, "score": score})
        torch.distributed.barrier()
    with open(f"{args.out}.{args.node_rank}", "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--root_dir", type=str)
    parser.add_argument("--out", type=str)
    parser.add_argument("--num_nodes", type=int, default=2)
    parser.add_argument("--node_rank", type=int, default=0)
    parser.add_argument("--in_channels", type=int)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--master_addr", type=str, default="localhost")
    parser.add_argument("--training_pg_master_port", type=int)
    parser.add_argument("--train_loader_master_port", type=int)
    parser.add_argument("--test_loader_master_port", type=int)
    args = parser.parse_args()

    dataset = glt.distributed.DistDataset(edge_dir=EDGE_DIR)
    dataset.load(root_dir=osp.join(args.root_dir, "partitions"), partition_idx=args.node_rank, graph_mode="CPU")
    parts = [
        torch.load(osp.join(args.root_dir, f"{name}-partitions", f"partition{args.node_rank}.pt"))
        for name in ("train", "test")
    ]
    main(args, dataset, *parts)
