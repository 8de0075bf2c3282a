"""The keywords of torch's ``DataLoader`` that programs give loaders: which do something here, and what."""

from __future__ import annotations

import functools
import random
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from ..errors import InvalidArgumentError, UnknownIdError
from ..utils.shown import shown
from ..utils.values import to_count, to_flag

TORCH_ATTRIBUTES = frozenset(
    {
        "batch_size", "drop_last", "sampler", "batch_sampler", "generator", "num_workers", "worker_init_fn",
        "pin_memory", "pin_memory_device", "persistent_workers", "prefetch_factor", "timeout",
        "multiprocessing_context", "in_order",
    }
)  # fmt: skip
_KNOWN = TORCH_ATTRIBUTES | {"shuffle", "dataset", "collate_fn"}
_BATCHES_AHEAD = 2  # of each thread, as torch has it
_WITHOUT_EFFECT = {
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
    "pin_memory_device": "",
    "in_order": True,
}


@functools.lru_cache
def say_once(text: str) -> None:
    """Warns, if it did not say the same before."""
    warnings.warn(text, UserWarning, stacklevel=4)


class _KeptKeywords(DataLoader[Any]):
    """A ``DataLoader`` for its keywords alone, which never starts a worker process."""

    def check_worker_number_rationality(self) -> None:
        """Says nothing: torch warns of more processes than there are cores, and these are threads."""


class DataLoaderKeywords:
    """What a loader does with the keywords that programs know from ``torch.utils.data.DataLoader``.

    Torch looks at them, so that what it refuses is refused here. Batches are made by threads of this process: as many
    as ``num_workers``, each of which calls ``worker_init_fn`` first where that was given. Keywords that are about
    worker processes change nothing, which is said once.

    Args:
        num_inputs: seeds or links.
        prefetch: background threads where ``num_workers`` is not given.
        keywords: as of ``DataLoader``: ``batch_size``, ``shuffle``, ``drop_last``, ``sampler`` and so on.

    Attributes:
        dataset: the positions of the seeds or links.
        num_threads: background threads.
        batches_ahead: of each of them.
        pin_memory: whether batches are pinned.

    Raises:
        InvalidArgumentError: keywords that torch refuses, or ``batch_size=None``.
        TypeError: a keyword that nobody knows.
    """

    def __init__(self, num_inputs: int, prefetch: int, keywords: dict[str, Any]) -> None:
        for ours in ("dataset", "collate_fn"):  # which Lightning hands back to the class that it got them from
            keywords.pop(ours, None)
        has_order = keywords.get("sampler") is not None or keywords.get("batch_sampler") is not None
        if keywords.get("batch_sampler") is None:
            keywords["batch_size"] = to_count("batch_size", keywords.get("batch_size", 1))
        self.shuffle = to_flag("shuffle", keywords.get("shuffle"))
        # Torch shuffles no empty list.
        looked_at = keywords if has_order else {**keywords, "shuffle": self.shuffle and num_inputs > 0}
        self.dataset = range(num_inputs)
        try:
            self._torch = _KeptKeywords(self.dataset, **looked_at)  # type: ignore[arg-type]
        except (ValueError, TypeError) as error:
            raise InvalidArgumentError(f"keywords of DataLoader: {error}") from error
        self._has_order = has_order
        self.num_threads = keywords.get("num_workers", prefetch)
        self.batches_ahead = keywords.get("prefetch_factor") or _BATCHES_AHEAD
        self.pin_memory = bool(keywords.get("pin_memory")) and torch.cuda.is_available()
        unused = [name for name, default in _WITHOUT_EFFECT.items() if keywords.get(name, default) != default]
        if keywords.get("pin_memory") and not self.pin_memory:
            unused.append("pin_memory (there is no GPU)")
        if unused:
            say_once(f"loaders make batches in threads of this process: {', '.join(unused)} without effect")

    def __getattr__(self, name: str) -> Any:
        if name not in TORCH_ATTRIBUTES:
            raise AttributeError(name)
        return getattr(self._torch, name)

    @property
    def own_order(self) -> Any:
        """What gives the positions of each batch, where a program brought its own ``sampler`` or ``batch_sampler``."""
        return self._torch.batch_sampler if self._has_order else None

    def batches(self) -> Iterator[torch.Tensor]:
        """The positions of each batch of an epoch in the program's own order, int64 ``[batch_size]``.

        Raises:
            InvalidArgumentError: the program's sampler gives what is no whole number.
            UnknownIdError: it gives one behind the last seed.
        """
        count = len(self.dataset)
        own = self._torch.batch_sampler
        for batch in () if own is None else own:  # it may have no length
            positions = _positions(batch)
            if positions.numel() and (positions.is_floating_point() or positions.dtype == torch.bool):
                raise InvalidArgumentError(
                    f"sampler, batch_sampler: expected positions of seeds, which are whole numbers, got {shown(batch)}"
                )
            if positions.numel() and not -count <= int(positions.min()) <= int(positions.max()) < count:
                raise UnknownIdError(f"sampler, batch_sampler: expected positions of {count} seeds, got {shown(batch)}")
            yield positions.to(torch.int64, copy=True)  # the program may use its memory again

    @property
    def begin(self) -> Callable[[int], None] | None:
        """Called by each background thread first, with its number; None where ``num_workers`` asks for none."""
        init = self._torch.worker_init_fn
        if init is None or not self._torch.num_workers:
            return None
        # Of a loop in a function that was called so: its caller restores what both change.
        return init if getattr(_of_thread, "begins", False) else functools.partial(_begin_as_process, init)


_beginning = threading.Lock()  # of all loaders: two that restore generators at once would restore each other's
_of_thread = threading.local()  # `begins`: whether it is in a function that is called first


def _begin_as_process(init: Callable[[int], None], number: int) -> None:
    """``init(number)``, which leaves the generators of this process as they are: it seeds those of a worker process."""
    is_on_gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with _beginning, torch.random.fork_rng(range(torch.cuda.device_count()) if is_on_gpus else ()):
        of_python, of_numpy = random.getstate(), np.random.get_state()
        _of_thread.begins = True
        try:
            init(number)
        finally:
            _of_thread.begins = False
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _positions(batch: Any) -> torch.Tensor:
    """What a program's own order gives for a batch: a tensor, an array, or what numbers can be read from."""
    if isinstance(batch, np.ndarray):
        return torch.as_tensor(batch.astype(np.int64) if batch.dtype.kind == "u" else batch)
    try:
        return batch if isinstance(batch, torch.Tensor) and batch.dim() == 1 else torch.as_tensor(list(batch))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"sampler, batch_sampler: expected the positions of each batch, got {shown(batch)}"
        ) from error


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """Raises a ``TypeError`` that names a keyword which torch's ``DataLoader`` does not have."""
    for name in keywords:
        if name not in _KNOWN:
            raise TypeError(f"got an unexpected keyword argument {name!r}")


def drawn_seed(seed: int | None, generator: torch.Generator | None) -> int:
    """A seed, where none is given from torch's generator: that of the program, or the one of ``torch.manual_seed``."""
    if seed is not None:
        return seed
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator))
