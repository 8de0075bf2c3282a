"""Train on the whole graph at once, without sampling: the reference that sampled training is compared with.

Usage: python examples/full_batch.py [--data debian] [--epochs 80] [--no-edges]
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import dataclass

import datasets
import torch
import torch.nn.functional as F
from datasets import NodeDataset
from models import GraphSAGE
from scoring import Quality, quality
from torch import Tensor


@dataclass(frozen=True)
class FullBatchResult:
    """What a full-batch run reached; accuracies are those of the epoch with the best validation accuracy.

    Attributes:
        test_accuracy: fraction of test nodes that are right.
        val_accuracy: fraction of validation nodes that are right (of training nodes, where there is no such split).
        best_epoch: the epoch they belong to, from 1.
        epochs: epochs that were trained.
        epoch_time_s: mean seconds an epoch's training step took, evaluation left out.
        total_time_s: seconds of the whole run.
        test_roc_auc: area under the ROC curve of the test nodes; None unless there are two classes.
    """

    test_accuracy: float
    val_accuracy: float
    best_epoch: int
    epochs: int
    epoch_time_s: float
    total_time_s: float
    test_roc_auc: float | None = None


def adjacency(data: NodeDataset) -> Tensor:
    """The graph as a sparse CSR matrix ``[targets, sources]`` of ones: several times faster than scattering."""
    source, target = data.edge_index
    order = torch.argsort(target * data.num_nodes + source)
    indptr = torch.zeros(data.num_nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.bincount(target, minlength=data.num_nodes).cumsum(0)
    size = (data.num_nodes, data.num_nodes)
    with warnings.catch_warnings():  # torch calls its CSR tensors beta, once a process
        warnings.filterwarnings("ignore", message="Sparse", category=UserWarning)
        return torch.sparse_csr_tensor(indptr, source[order], torch.ones(data.num_edges), size, check_invariants=True)


def train_full_batch(
    data: NodeDataset,
    *,
    hidden: int = 64,
    epochs: int = 80,
    lr: float = 0.02,
    dropout: float = 0.3,
    weight_decay: float = 0.0,
    num_layers: int = 2,
    seed: int = 0,
    use_edges: bool = True,
    eval_every: int = 10,
) -> FullBatchResult:
    """Train a GraphSAGE with all neighbors of all nodes in each step.

    Args:
        data: the graph.
        hidden: width of the hidden layers.
        epochs: training steps; one step sees every training node.
        lr: Adam's learning rate at the start; it falls linearly to a tenth.
        dropout: dropout on the hidden layers.
        weight_decay: Adam's.
        num_layers: convolutions.
        seed: seeds the weights and the dropout.
        use_edges: False trains the same network without the graph.
        eval_every: evaluate after so many epochs, and after the last.
    """
    torch.manual_seed(seed)
    start = time.perf_counter()
    model = GraphSAGE(data.x.shape[1], hidden, data.num_classes, num_layers, dropout, use_edges=use_edges)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=epochs - 1)
    adj = adjacency(data) if use_edges else None
    chosen_by = data.val if len(data.val) else data.train
    best, trained_s = (-1.0, Quality(0.0, None), 0), 0.0
    for epoch in range(1, epochs + 1):
        step_start = time.perf_counter()
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(data.x, adj)[data.train], data.y[data.train]).backward()
        optimizer.step()
        decay.step()
        trained_s += time.perf_counter() - step_start
        if epoch % eval_every == 0 or epoch == epochs:
            scores = predict(model, data.x, adj)
            val = quality(scores[chosen_by], data.y[chosen_by]).accuracy
            if val > best[0]:
                best = (val, quality(scores[data.test], data.y[data.test]), epoch)
    val, tested, best_epoch = best
    total_s = time.perf_counter() - start
    return FullBatchResult(tested.accuracy, val, best_epoch, epochs, trained_s / epochs, total_s, tested.roc_auc)


@torch.no_grad()
def predict(model: GraphSAGE, x: Tensor, adj: Tensor | None) -> Tensor:
    """Class scores of every node, without dropout."""
    model.eval()
    return model(x, adj)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-edges", action="store_true", help="train the same network without the graph")
    args = parser.parse_args()
    data = datasets.load(args.data, seed=args.seed)
    print(f"{data.name}: {data.num_nodes:,} nodes, {data.num_edges:,} edges, {data.num_classes} classes")
    result = train_full_batch(
        data, hidden=args.hidden, epochs=args.epochs, lr=args.lr, seed=args.seed, use_edges=not args.no_edges
    )
    print(
        f"test accuracy {result.test_accuracy:.2%}, validation {result.val_accuracy:.2%} (epoch {result.best_epoch} "
        f"of {result.epochs}), {result.epoch_time_s:.2f} s an epoch, {result.total_time_s:.0f} s in all"
    )


if __name__ == "__main__":
    main()
