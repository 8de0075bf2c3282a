"""What the loaders of one process have in common: batches in the form of ``graphlearn_torch.loader``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...errors import InvalidArgumentError
from ...loader import local_loader
from ...loader.dataloader_keywords import check_keywords
from ...sampler.base import NodeSamplerInput
from ...sampler.epochs.fingerprint import Settings, input_settings
from ...sampler.epochs.schedule import SeedSchedule
from ...sampler.inputs import resolve_input
from ...sampler.outputs import HeteroSamplerOutput, SamplerOutput
from ...utils.device import parse_device
from ..data.graph import take_gpu
from .batch_form import in_glt_form
from .iteration import OwnNext
from .own_sampler import SamplerSource, to_batch, without_settings


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

    def _open_own(
        self,
        data: Any,
        sample: Callable[[Any], Any],
        sampler_input: Any,
        device: Any,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        transform: Any = None,
        **options: Any,
    ) -> None:
        """In the place of ``__init__``, for a sampler of the program's own: one batch after the other calls it, in the
        thread that iterates, or with ``num_workers`` in one other; ``prefetch`` and ``num_threads`` change nothing.

        Raises:
            InvalidArgumentError: options that the sampler would have to know.
        """
        keywords = without_settings(options)
        check_keywords(keywords)
        self._input = resolve_input(sampler_input, data)
        self.edge_dir = data.edge_dir
        self._open(
            data,
            SamplerSource(sample, self._input, self, None if device is None else parse_device(device)),
            len(self._input),
            {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, **keywords},
            functools.partial(_settings_of, type(getattr(sample, "__self__", sample)).__name__, self._input),
            seed=0,
            device=device,
            transform=transform,
            prefetch=0,
        )
        self.device = self._copies.device or torch.device("cpu")

    def __iter__(self) -> Any:
        self.__dict__.pop("_seeds_iter", None)
        return super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """See ``EpochLoader``; the next pass over ``_seed_loader`` is that of this epoch, too."""
        super().set_epoch(epoch)
        self._passes.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """See ``EpochLoader``.

        Raises:
            InvalidArgumentError: the program takes seeds from ``_seed_loader``, of which the loader knows no place.
        """
        if self._passes.have_begun:
            raise InvalidArgumentError(
                "state_dict: expected a loop whose batches the loader makes, got one over _seed_loader or _seeds_iter"
            )
        return super().state_dict()

    @functools.cached_property
    def _passes(self) -> _Passes:
        return _Passes()

    @functools.cached_property
    def _seeds_iter(self) -> Any:
        """The seeds of a loop, for programs that make its batches in a ``__next__`` of their own."""
        return iter(self._seed_loader)

    @property
    def _seed_loader(self) -> Any:
        """A loader of the seeds of each batch, of links of their positions; by its length programs know how many
        batches an epoch has."""
        given = getattr(self, "_input", None)
        seeds: Any = given.node if isinstance(given, NodeSamplerInput) else self.dataset
        own = self.keywords.own_order
        if own is not None:
            return torch.utils.data.DataLoader(seeds, batch_sampler=self.batch_sampler)
        return torch.utils.data.DataLoader(seeds, batch_sampler=_Batches(self._schedule, self._passes))

    def _collate_fn(self, sampler_out: Any) -> Any:
        """The batch of what was sampled, which programs extend in loaders of their own; see ``in_glt_form``.

        Args:
            sampler_out: a batch of ``graphlearn_dist``; where a program calls its sampler itself, or brings one, the
                output of that.
        """
        if isinstance(self._source, SamplerSource) and not isinstance(
            sampler_out, (SamplerOutput, HeteroSamplerOutput)
        ):
            raise InvalidArgumentError(
                "sampler: expected sample_from_nodes or sample_from_edges to give a SamplerOutput or "
                f"HeteroSamplerOutput, or a _collate_fn that takes others, got {type(sampler_out).__name__}"
            )
        if isinstance(sampler_out, (SamplerOutput, HeteroSamplerOutput)):
            kind, labels = self._input.input_type, isinstance(self._input, NodeSamplerInput)
            return to_batch(self.data, sampler_out, self.edge_dir, input_type=kind, with_labels=labels)
        types, with_edge = self._edge_types, self.config.with_edge
        return in_glt_form(sampler_out, self.edge_dir, is_local=True, with_edge=with_edge, edge_types=types)

    def _finished(self, batch: Any) -> Any:
        made = batch if self._as_pyg_v1 else self._collate_fn(batch)
        return made if self._own_transform is None else self._own_transform(made)


class _Passes:
    """Passes over the seeds of a loader, by whoever makes its batches in the loader's place.

    Attributes:
        epoch: that of the next one.
        have_begun: whether there was one.
    """

    epoch = 0
    have_begun = False

    def begin(self) -> int:
        """The epoch of one that begins."""
        self.epoch, self.have_begun = self.epoch + 1, True
        return self.epoch - 1


class _Batches:
    """The positions of each batch of an epoch; each iteration is the next one."""

    def __init__(self, schedule: SeedSchedule, passes: _Passes) -> None:
        self._schedule, self._passes = schedule, passes

    def __len__(self) -> int:
        return self._schedule.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self._passes.begin()
        for index in range(len(self)):
            yield self._schedule.positions(epoch, index).tolist()


def _settings_of(sampler: str, sampler_input: Any) -> Settings:
    """What batches of a program's own sampler are a function of, as far as that can be said."""
    return {"sampler": sampler, **input_settings(sampler_input)}
