"""Partition books where a tensor is expected: the owners of all ids, for programs that keep books as tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


class OwnersAsTensor(ABC):
    """An object that stands for a tensor ``[num_ids]``, the owner of each id, wherever one is read.

    Lengths, shapes, comparisons, torch functions, numpy and the methods of a tensor work on ``as_tensor()``, which may
    be made anew each time: who reads all owners more than once keeps it. Nothing can be written through it.
    """

    @abstractmethod
    def as_tensor(self) -> torch.Tensor:
        """The owner of each id, ``[num_ids]``."""

    @property
    @abstractmethod
    def num_ids(self) -> int:
        """Number of ids."""

    def __len__(self) -> int:
        return self.num_ids

    def __bool__(self) -> bool:
        return True  # there is a book, whether it has ids or not

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.as_tensor())

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.num_ids])

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """One."""
        return 1

    def numel(self) -> int:
        """Number of ids."""
        return self.num_ids

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self.as_tensor() == plain(other)

    def __ne__(self, other: object) -> Any:
        return self.as_tensor() != plain(other)

    def __lt__(self, other: Any) -> Any:
        return self.as_tensor() < plain(other)

    def __le__(self, other: Any) -> Any:
        return self.as_tensor() <= plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.as_tensor() > plain(other)

    def __ge__(self, other: Any) -> Any:
        return self.as_tensor() >= plain(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        owners = self.as_tensor().numpy()
        return owners if dtype is None else owners.astype(dtype)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.as_tensor().__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.as_tensor().__dlpack_device__()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*plain(args), **plain(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        """What a tensor has and a book has not, such as ``tolist`` or ``max``."""
        if name.startswith("_") or not hasattr(torch.Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.as_tensor(), name)


def plain(value: Any) -> Any:
    """The tensors of books in a value, in lists, tuples and dicts too; the rest stays."""
    if isinstance(value, OwnersAsTensor):
        return value.as_tensor()
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain, value))
    return {key: plain(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def ids_at(indices: Any, num_ids: int) -> tuple[Any, tuple[int, ...] | None]:
    """The ids that an index of a tensor ``[num_ids]`` means, and the shape of what it gives where that is no vector.

    An integer, a slice, a list, a mask or ids of any shape; what is none of these stays as it is.
    """
    if isinstance(indices, slice):
        return torch.arange(*indices.indices(num_ids)), None
    if isinstance(indices, (int, np.integer)):
        return torch.tensor([int(indices) + (num_ids if indices < 0 else 0)]), ()
    if isinstance(indices, (list, np.ndarray)):
        indices = torch.as_tensor(indices)
    if isinstance(indices, torch.Tensor) and indices.dtype == torch.bool and tuple(indices.shape) == (num_ids,):
        return indices.nonzero().view(-1), None
    if isinstance(indices, torch.Tensor) and indices.dim() != 1:
        return indices.reshape(-1), tuple(indices.shape)
    return indices, None
