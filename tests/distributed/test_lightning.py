"""Loaders under PyTorch Lightning: its trainer calls len() and iter(), validates in between, and keeps checkpoints."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from graphlearn_dist.distributed import DistDataset, DistNeighborLoader, MpDistSamplingWorkerOptions
from graphlearn_dist.loader import NeighborLoader
from tests.support.graphs import make_dataset, random_graph
from tests.support.jobs import children
from tests.support.processes import run_processes

pl = pytest.importorskip("pytorch_lightning")
ModelCheckpoint = pytest.importorskip("pytorch_lightning.callbacks").ModelCheckpoint

NUM_NODES, EPOCHS, BATCH = 120, 2, 16
GRAPH = random_graph(NUM_NODES, 900, 8)
TRAIN, VALID = torch.arange(70), torch.arange(70, 100)


class Classifier(pl.LightningModule):  # type: ignore[misc]
    """Two layers over the node's feature, and a record of what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(2, 8), SAGEConv(8, 2)])
        self.trained: list[list[list[int]]] = []
        self.validated: list[list[list[int]]] = []
        self.losses: list[float] = []

    def step(self, batch: Any) -> torch.Tensor:
        x = (batch.x / NUM_NODES - 0.5) * 2
        x = self.convs[1](self.convs[0](x, batch.edge_index).relu(), batch.edge_index)[: batch.batch_size]
        return F.cross_entropy(x, (batch.y[: batch.batch_size] >= NUM_NODES // 3).long())

    def on_train_epoch_start(self) -> None:
        self.trained.append([])

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        assert batch_idx == len(self.trained[-1])
        self.trained[-1].append(batch.n_id.tolist())
        loss = self.step(batch)
        self.losses.append(float(loss.detach()) * batch.batch_size)  # the last batch is smaller
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated[-1].append(batch.n_id.tolist())
        self.log("loss", self.step(batch), batch_size=batch.batch_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def open_loader(kind: str, seeds: torch.Tensor, *, shuffle: bool) -> Any:
    dataset = make_dataset(GRAPH, "in")
    if kind == "local":
        return NeighborLoader(dataset, [4, 3], seeds, batch_size=BATCH, shuffle=shuffle, seed=1)
    options = MpDistSamplingWorkerOptions(channel_size="16MB") if kind == "mp" else None
    return DistNeighborLoader(
        DistDataset.from_dataset(dataset), [4, 3], seeds, batch_size=BATCH, shuffle=shuffle, edge_dir="in",
        collect_features=True, random_seed=1, worker_options=options,
    )  # fmt: skip


def make_trainer(directory: Path, **options: Any) -> Any:
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    settings = {**dict.fromkeys(silent, False), "devices": 1, "default_root_dir": directory, "max_epochs": EPOCHS}
    return pl.Trainer(accelerator="cpu", **{**settings, **options})


def epochs_of(seeds: torch.Tensor, count: int, *, shuffle: bool) -> list[list[list[int]]]:
    """What a loader in one process gives in its first epochs; Lightning's own ``iter()`` takes none away."""
    local = open_loader("local", seeds, shuffle=shuffle)
    return [[batch.n_id.tolist() for batch in local] for _ in range(count)]


@pytest.fixture(autouse=True)
def _no_distractions() -> Iterator[None]:
    """Lightning advises ``num_workers`` for what is no ``DataLoader`` of torch, and warns of its own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kind", ["local", "collocated", "mp"])
def test_training(kind: str, tmp_path: Path) -> None:
    """Two epochs with a validation before and after each: every batch is the one of its epoch and index."""
    torch.manual_seed(0)
    model, trainer = Classifier(), make_trainer(tmp_path)
    train, valid = open_loader(kind, TRAIN, shuffle=True), open_loader(kind, VALID, shuffle=False)
    try:
        trainer.fit(model, train, valid)
        assert trainer.num_training_batches == len(train) == 5
        assert trainer.num_val_batches == [len(valid)] == [2]
    finally:
        for loader in (train, valid):
            getattr(loader, "shutdown", lambda: None)()
    assert trainer.current_epoch == EPOCHS
    assert trainer.global_step == EPOCHS * 5
    assert len(model.trained) == EPOCHS
    assert model.trained[0] != model.trained[1]
    assert model.trained == epochs_of(TRAIN, EPOCHS, shuffle=True)
    assert model.validated == epochs_of(VALID, 1 + EPOCHS, shuffle=False)  # the sanity check before all is one more
    assert sum(model.losses[5:]) < sum(model.losses[:5])
    if kind == "mp":
        assert children(os.getpid()) == []


def test_an_epoch_that_is_left_early(tmp_path: Path) -> None:
    model = Classifier()
    with open_loader("collocated", TRAIN, shuffle=True) as train:
        make_trainer(tmp_path, limit_train_batches=2).fit(model, train)
    assert model.trained == [epoch[:2] for epoch in epochs_of(TRAIN, EPOCHS, shuffle=True)]


class GoesOn(Classifier):
    """Tells the loader which epoch Lightning is in, which it does not do by itself after a checkpoint of an end."""

    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self.trainer.train_dataloader.set_epoch(self.current_epoch)


def fit(model: Classifier, kind: str, directory: Path, checkpoint: Path | None = None, **options: Any) -> None:
    """Trains to the end, or as far as the options say; from a checkpoint if given."""
    loader = open_loader(kind, TRAIN, shuffle=True)
    try:
        make_trainer(directory, **options).fit(model, loader, ckpt_path=checkpoint)
    finally:
        getattr(loader, "shutdown", lambda: None)()


@pytest.mark.parametrize(
    ("num_steps", "when", "until"),
    [
        (3, {"every_n_train_steps": 3}, {"max_steps": 3}),
        (7, {"every_n_train_steps": 7}, {"max_steps": 7}),
        (5, {"every_n_epochs": 1}, {"max_epochs": 1}),
        (5, {"every_n_train_steps": 5}, {"max_steps": 5}),
    ],
)
def test_a_job_goes_on_from_a_checkpoint(
    num_steps: int, when: dict[str, int], until: dict[str, int], tmp_path: Path
) -> None:
    """From the middle of an epoch and from its end, in another mode: the batches of a job in one piece."""
    first, later = GoesOn(), GoesOn()
    saved = ModelCheckpoint(tmp_path, save_top_k=-1, filename="{step}", **when)
    fit(first, "local", tmp_path, enable_checkpointing=True, callbacks=[saved], **until)
    assert sum(map(len, first.trained)) == num_steps
    later.trained = [list(epoch) for epoch in first.trained]
    if when == {"every_n_train_steps": 5}:  # saved before Lightning counted the epoch: it does not announce the next
        later.trained.append([])
    fit(later, "collocated", tmp_path, tmp_path / f"step={num_steps}.ckpt")
    assert later.trained == epochs_of(TRAIN, EPOCHS, shuffle=True)


class Sharded(Classifier):
    """Opens its loader in the process that trains, with that trainer's share of the batches."""

    def train_dataloader(self) -> Any:
        dataset = DistDataset.from_dataset(make_dataset(GRAPH, "in"))
        self.loader = DistNeighborLoader(
            dataset, [4, 3], TRAIN[:64], batch_size=BATCH, edge_dir="in", collect_features=True, random_seed=1,
            shard=(self.trainer.global_rank, self.trainer.world_size),
        )  # fmt: skip
        return self.loader

    def on_train_end(self) -> None:
        seeds = [[ids[:BATCH] for ids in epoch] for epoch in self.trained]
        weights = [float(p.detach().sum()) for p in self.parameters()]
        path = Path(self.trainer.default_root_dir) / f"{self.trainer.global_rank}.json"
        path.write_text(json.dumps({"seeds": seeds, "weights": weights}))


def train_in_two_processes(directory: str) -> None:
    torch.manual_seed(0)
    make_trainer(Path(directory), devices=2, strategy="ddp_fork").fit(Sharded())


def test_ddp(tmp_path: Path) -> None:
    """No sampler is put into a loader that is none of torch's: ``shard`` shares the batches out."""
    run_processes([("tests.distributed.test_lightning.train_in_two_processes", {"directory": str(tmp_path)})], 120.0)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for epoch in range(EPOCHS):
        mine, others = first["seeds"][epoch], second["seeds"][epoch]
        assert [len(mine), len(others)] == [2, 2]
        assert [mine[0], others[0], mine[1], others[1]] == TRAIN[:64].view(4, BATCH).tolist()
    assert first["weights"] == second["weights"]
