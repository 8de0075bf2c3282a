"""Learned rows of nodes, and optimizers that change only the rows that a batch had."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterable
from typing import NoReturn

import torch

from ..core import check_index_vector
from ..errors import InvalidArgumentError
from ..typing import NodeType
from ..utils.paths import to_path
from ..utils.shown import shown
from ..utils.values import is_number
from .embeddings.checkpoint import Checkpoint
from .embeddings.owners import owners_of
from .embeddings.settings import DTYPES, EmbeddingSettings, Init, OptimizerSettings
from .embeddings.table import sum_by_id


class DistEmbedding:
    """A learned row for each node of a type; ``emb(ids)`` gives rows that take gradients.

    In a client, rows are on the servers, each with the partition that owns the node; all clients of its group make it
    and step together. In a process alone, rows are there. First values are a function of (seed, name, id, column).

    Args:
        num: rows; with servers, the nodes of the type.
        dim: values of a row.
        name: tells the embeddings of a job apart: on servers two of one name are one table. In a process alone each
            object has its own rows.
        node_type: whose rows; None in a homogeneous graph.
        init: ``"normal"``, ``"uniform"`` or ``"zeros"``.
        scale: standard deviation, or bound, of the first values.
        seed: of the first values.
        dtype: ``torch.float32`` or ``torch.float64``.
        path: a folder on the disk of each owner, for rows larger than its memory: they, and what the optimizer keeps of
            them, are mapped from files there, which go with them (``save`` keeps rows). None: rows are in memory.
        timeout_s: deadline of each request, a step's included, which waits for all trainers.

    Raises:
        InvalidArgumentError: arguments that are not as said, or differ between trainers.
        StorageError: ``path`` has no room for the rows.
        PeerLostError: a server is gone, or a trainer of this embedding died.
    """

    def __init__(
        self,
        num: int,
        dim: int,
        *,
        name: str,
        node_type: NodeType | None = None,
        init: Init = "normal",
        scale: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        path: str | os.PathLike[str] | None = None,
        timeout_s: float = 180.0,
    ) -> None:
        if not is_number(timeout_s) or not timeout_s > 0:
            raise InvalidArgumentError(f"timeout_s: expected a positive number of seconds, got {shown(timeout_s)}")
        dtype_name, folder = str(dtype).removeprefix("torch."), "" if path is None else os.path.abspath(path)
        settings = EmbeddingSettings(name, node_type, num, dim, init, scale, seed, dtype_name, folder)
        self.settings = settings
        self._owners = owners_of(settings, timeout_s)
        self._uses = itertools.count()
        self._used: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by number of the use, those that have gradients

    @classmethod
    def from_checkpoint(cls, directory: str | os.PathLike[str]) -> DistEmbedding:
        """The embedding of a checkpoint, as it was saved; in a client all trainers call it.

        Raises:
            StorageError: there is no checkpoint, or it is damaged.
        """
        settings = Checkpoint.read(to_path("directory", directory)).settings
        arguments = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
        found = cls(**{**arguments, "dtype": DTYPES[settings.dtype], "path": settings.path or None})
        found.load(directory)
        return found

    @property
    def name(self) -> str:
        """Tells the embeddings of a job apart."""
        return self.settings.name

    @property
    def tag(self) -> str:
        """Of the checkpoint that was loaded last, whoever loads it; empty where none was."""
        return self._owners.tag.partition("-")[0]  # what follows tells one load from another

    @property
    def step(self) -> int:
        """Steps that the rows have taken; -1 where servers differ, as one that was started anew, until ``load``."""
        return self._owners.step

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows ``[n, dim]`` of global ids, int ``[n]``, on the ids' device.

        Where gradients are recorded, those of the rows wait for the optimizer's ``step``.

        Raises:
            UnknownIdError: an id is outside the table.
            InvalidArgumentError: ids that are no such tensor.
            EmbeddingStateError: a server is not at this trainer's step, as one that was started anew.
        """
        ids = check_index_vector(ids, "ids", any_device=True)
        rows = self._owners.pull(ids.cpu()).to(ids.device)
        if torch.is_grad_enabled():
            use = next(self._uses)
            rows.requires_grad_()
            # Rows whose gradients never come, as those of a validation, are not kept.
            rows.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda given: self._used.update({use: (ids, given)})
            )
        return rows

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes a checkpoint: all rows, what the optimizer keeps of them, and the number of steps.

        One trainer calls it, between two steps; servers write their rows at the same time, to a directory that they
        and this trainer share. An older checkpoint there is replaced when the new one is whole: whoever is killed on
        the way leaves the old one.

        Raises:
            StorageError: the disk is full, or the directory is not shared; the old checkpoint stays.
            InvalidArgumentError: the directory has something else, such as another embedding's checkpoint.
            EmbeddingStateError: the servers are not at this trainer's step.
            PeerLostError: a server is gone.
        """
        self._owners.save(to_path("directory", directory).absolute())

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Goes on from a checkpoint, written by any number of servers. All trainers call it, and wait for each other.

        Steps that others have begun are off, and gradients recorded here are forgotten. After a server was started
        anew, or a trainer died in a step, this brings all to the same step.

        Raises:
            StorageError: there is no checkpoint, or it is damaged; nothing has changed on that server.
            InvalidArgumentError: it is of another table, or trainers load different ones.
            DeadlineExceededError: a trainer did not load it within ``timeout_s``.
        """
        self.forget_gradients()
        self._owners.load(to_path("directory", directory).absolute())

    def forget_gradients(self) -> None:
        """Drops what was recorded since the last step; optimizers' ``zero_grad`` does it."""
        for _, rows in self._used.values():
            rows.grad = None
        self._used.clear()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"embedding {self.name!r} cannot be copied or pickled: save() keeps its rows, load() reads them"
        )

    def _summed_gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The distinct ids that have gradients, ascending, and the sum of each over all uses, in their order."""
        kept = [self._used[use] for use in sorted(self._used)]
        used = [(ids.cpu().long(), rows.grad.cpu()) for ids, rows in kept if rows.grad is not None]
        dtype = DTYPES[self.settings.dtype]
        none = torch.empty(0, dtype=torch.int64), torch.empty((0, self.settings.dim), dtype=dtype)
        ids, grads = zip(none, *used, strict=True)
        return sum_by_id(torch.cat(ids), torch.cat(grads))


class _SparseOptimizer:
    """Steps that all trainers take together."""

    def __init__(self, params: Iterable[DistEmbedding], settings: OptimizerSettings) -> None:
        if not isinstance(params, Iterable):
            raise InvalidArgumentError(f"params: expected a list of DistEmbeddings, got {type(params).__name__}")
        self.params = list(params)
        if not self.params or not all(isinstance(param, DistEmbedding) for param in self.params):
            raise InvalidArgumentError(f"params: expected DistEmbeddings, got {shown(self.params)}")
        if len({*map(id, self.params)}) != len(self.params):
            raise InvalidArgumentError("params: expected each embedding once, got one twice")
        self.settings = settings

    def zero_grad(self) -> None:
        """Drops the gradients recorded since the last step."""
        for param in self.params:
            param.forget_gradients()

    def step(self) -> None:
        """Pushes the summed gradients of all uses since the last step; returns when all trainers' are applied.

        Gradients of trainers are added, in the order of their ranks. Rows without gradients stay as they are.

        Raises:
            PeerLostError: a trainer or a server died; all trainers have to ``load`` a checkpoint.
            DeadlineExceededError: a trainer did not push this step; likewise.
            EmbeddingStateError: trainers are at different steps; likewise.
            InvalidArgumentError: trainers have different optimizers.
        """
        pushed = [(param, param._owners.push(self.settings, *param._summed_gradients())) for param in self.params]
        for param, answers in pushed:
            for answer in answers:
                answer.result()
            param._owners.step += 1
            param.forget_gradients()


class SparseSGD(_SparseOptimizer):
    """Stochastic gradient descent of the rows that have gradients, as ``torch.optim.SGD``."""

    def __init__(self, params: Iterable[DistEmbedding], lr: float) -> None:
        super().__init__(params, OptimizerSettings("sgd", lr))


class SparseAdagrad(_SparseOptimizer):
    """Adagrad (Duchi et al., 2011) of the rows that have gradients, as ``torch.optim.Adagrad``."""

    def __init__(self, params: Iterable[DistEmbedding], lr: float, eps: float = 1e-10) -> None:
        super().__init__(params, OptimizerSettings("adagrad", lr, eps))


class SparseAdam(_SparseOptimizer):
    """Adam (Kingma and Ba, 2015) of the rows that have gradients, as ``torch.optim.SparseAdam``.

    Bias is corrected by the steps of the table, not of the row.
    """

    def __init__(
        self, params: Iterable[DistEmbedding], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise InvalidArgumentError(f"betas: expected two numbers, got {shown(betas)}")
        super().__init__(params, OptimizerSettings("adam", lr, eps, *betas))
