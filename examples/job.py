"""One job, as the demo, the benchmark of accuracy and the tests run it: settings, partitions, launcher, reference."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
from datasets import NodeDataset
from full_batch import FullBatchResult, train_full_batch

from graphlearn_dist.errors import LaunchError
from graphlearn_dist.partition import RandomPartitioner

TRAINER = Path(__file__).with_name("train_sage_remote.py")
STOP_TIMEOUT_S = 30.0  # what the launcher gets to end its processes before it is ended itself


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how: the same network and regularisation for the remote job and the full-batch reference.

    Attributes:
        hidden: width of the hidden layers.
        dropout: of the hidden values, while training.
        weight_decay: Adam's.
        unit_rows: divide each node's features by their sum (for bags of words).
        fanout: neighbors to sample on each hop, the seeds' own first; with commas.
        batch_size: seeds in a batch of one trainer.
        epochs: passes over the training nodes of the remote job.
        lr: learning rate of the remote job at the start; it falls linearly to a tenth.
        full_epochs: steps of the reference, which sees all training nodes in each.
        full_lr: the reference's learning rate.
        full_eval_every: steps between the reference's evaluations; the remote job evaluates after each epoch.
    """

    hidden: int = 64
    dropout: float = 0.3
    weight_decay: float = 0.0
    unit_rows: bool = False
    fanout: str = "15,10"
    batch_size: int = 512
    epochs: int = 12
    lr: float = 0.01
    full_epochs: int = 80
    full_lr: float = 0.02
    full_eval_every: int = 10

    def load(self, spec: str, seed: int = 0) -> NodeDataset:
        """The data set that `spec` names (see `datasets.load`), its features as this recipe wants them."""
        data = datasets.load(spec, seed=seed)
        if not self.unit_rows:
            return data
        return replace(data, x=data.x / data.x.sum(dim=1, keepdim=True).clamp(min=1e-12))


RECIPES = {
    "debian": Recipe(),
    "cora": Recipe(
        dropout=0.8, weight_decay=5e-3, unit_rows=True, fanout="10,10", batch_size=70, epochs=60,
        full_epochs=60, full_lr=0.01, full_eval_every=1,
    ),
    "tolokers": Recipe(fanout="25,25", epochs=20, full_epochs=150),
}  # fmt: skip


def recipe_for(spec: str) -> Recipe:
    """The settings that suit a data set: by its name, or by the name of its file."""
    return RECIPES.get(Path(spec).name.removesuffix(".npz"), Recipe())


def partition(data: NodeDataset, out: Path, num_parts: int) -> None:
    """Split the data set into `num_parts` directories below `out`; a node's in-edges live where the node lives."""
    RandomPartitioner(
        out,
        num_parts,
        data.num_nodes,
        data.edge_index,
        node_feat=data.x,
        node_labels=data.y,
        node_split=(data.train, data.val, data.test),
        edge_assign_strategy="by_dst",
    ).partition()


def train_remotely(
    recipe: Recipe,
    partitions: Path,
    shape: tuple[int, int],
    out: Path,
    *,
    on: str = "local",
    servers: int = 2,
    trainers: int = 2,
    seeds: Sequence[int] = (0,),
    timeout_s: float | None = None,
    log: Path | None = None,
) -> list[dict[str, Any]]:
    """Run servers and trainers under the launcher; returns what the trainers wrote, one entry a seed.

    Args:
        recipe: the settings.
        partitions: a partition directory with as many parts as there are servers.
        shape: feature width and number of classes.
        out: where the trainers write.
        on: where the processes run, as the launcher names it.
        servers: processes that hold a partition each.
        trainers: processes that train together.
        seeds: one training run each, one after another under the same servers.
        timeout_s: seconds for all of it; None waits as long as it takes.
        log: file for the processes' output; None shows it.

    Raises:
        LaunchError: the launcher failed, or did not end in time.
    """
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--on", on, "--data", str(partitions)]
    command += ["--servers", str(servers), "--trainers", str(trainers), str(TRAINER)]
    command += ["--in-channels", str(shape[0]), "--num-classes", str(shape[1]), "--out", str(out)]
    for name in ("hidden", "dropout", "weight_decay", "fanout", "batch_size", "epochs", "lr"):
        command += [f"--{name.replace('_', '-')}", str(getattr(recipe, name))]
    command += ["--seeds", *map(str, seeds)]
    try:
        with launched(command, log) as process:
            code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"the job did not end within {timeout_s:g} s{_end_of(log)}") from None
    if code != 0:
        raise LaunchError(f"the launcher ended with exit code {code}{_end_of(log)}")
    results: list[dict[str, Any]] = json.loads(out.read_text())
    return results


def _end_of(log: Path | None) -> str:
    return f"; the end of what it wrote:\n{log.read_text(errors='replace')[-4000:]}" if log else ""


@contextlib.contextmanager
def launched(command: list[str], log: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that does not outlive the block: it is asked to end, and killed if it does not."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(log.open("wb")) if log else None
        # In a session of its own, so that Ctrl-C comes here only and the launcher is told once, below.
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output)
        stack.callback(_stop, process)
        yield process


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.terminate()
            process.wait(STOP_TIMEOUT_S)
    if process.poll() is None:
        process.kill()
        process.wait()


def train_reference(recipe: Recipe, data: NodeDataset, seed: int, *, use_edges: bool = True) -> FullBatchResult:
    """The same network on the whole graph at once, with all neighbors; or without its edges."""
    return train_full_batch(
        data,
        hidden=recipe.hidden,
        dropout=recipe.dropout,
        weight_decay=recipe.weight_decay,
        num_layers=len(recipe.fanout.split(",")),
        epochs=recipe.full_epochs,
        lr=recipe.full_lr,
        eval_every=recipe.full_eval_every,
        seed=seed,
        use_edges=use_edges,
    )
