"""What the loaders of one process have in common: batches in the form of ``graphlearn_torch.loader``."""

from __future__ import annotations

from typing import Any

import torch

from ...loader import local_loader
from ..data.graph import take_gpu
from .batch_form import in_glt_form
from .iteration import OwnNext


class LocalLoader(OwnNext, local_loader.LocalLoader):
    """A loader whose batches have the form of GraphLearn-for-PyTorch, see ``in_glt_form``.

    Attributes:
        device: where batches go.
        edge_dir: the direction of sampling.
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def __init__(self, data: Any, *args: Any, transform: Any = None, **kwargs: Any) -> None:
        self._own_transform = transform
        self.edge_dir = data.edge_dir
        self._edge_types = data.get_edge_types()
        take_gpu(data, kwargs.get("device"))
        super().__init__(data, *args, transform=self._finished, **kwargs)
        self.device = self._copies.device or torch.device("cpu")

    @property
    def _seed_loader(self) -> Any:
        """A loader of the seeds' positions, by whose length programs know how many batches an epoch has."""
        return torch.utils.data.DataLoader(self.dataset, self.batch_size, drop_last=self.drop_last)  # type: ignore[arg-type]

    def _collate_fn(self, sampler_out: Any) -> Any:
        """The batch of what was sampled, which programs extend in loaders of their own; see ``in_glt_form``.

        Args:
            sampler_out: a batch of ``graphlearn_dist``, not the output of the sampler.
        """
        types, with_edge = self._edge_types, self.config.with_edge
        return in_glt_form(sampler_out, self.edge_dir, is_local=True, with_edge=with_edge, edge_types=types)

    def _finished(self, batch: Any) -> Any:
        made = self._collate_fn(batch)
        return made if self._own_transform is None else self._own_transform(made)
