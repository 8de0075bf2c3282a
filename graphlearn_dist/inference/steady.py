"""Products and sums whose rows do not depend on which other rows are computed at once.

A BLAS chooses its kernels by the shape, and the rows and columns at the edge of a matrix may be summed in another order
than those inside. Where the numbers of rows and columns are whole numbers of tiles, all of them are inside. That is
what was found of MKL on AVX2, with one thread; no BLAS promises it, and the tests look for it. A sum over the first of
three dimensions, as ``HeteroConv`` takes it over edge types, has another order at the end of a tensor as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_TILE_ROWS = 64
_TILE_COLS = 16
_SUMS = (torch.sum, torch.Tensor.sum)
_MEANS = (torch.mean, torch.Tensor.mean)
_PRODUCTS = (torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__)


def steady_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``F.linear`` of float ``[n, k]``, each row of whose result depends on that row alone."""
    rows, cols = len(x), len(weight)
    more_rows, more_cols = -rows % _TILE_ROWS, -cols % _TILE_COLS
    if more_rows or not x.is_contiguous():
        x = F.pad(x, (0, 0, 0, more_rows)).contiguous()
    if more_cols:
        weight = F.pad(weight, (0, 0, 0, more_cols))
        bias = None if bias is None else F.pad(bias, (0, more_cols))
    return _LINEAR(x, weight.contiguous(), bias)[:rows, :cols]


_LINEAR: Callable[..., torch.Tensor] = F.linear


def _steady_sum(parts: torch.Tensor) -> torch.Tensor:
    """The sum over the first dimension, one after the other."""
    return functools.reduce(torch.add, parts.unbind(0))


class SteadyRows(TorchFunctionMode):
    """While it is entered, this thread's products of a matrix by another one are ``steady_linear``, and sums and means
    over the first of three dimensions are taken one after the other."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and args and _is_matrix(args[0]):
            return steady_linear(*args, **kwargs)
        if func in _PRODUCTS and len(args) == 2 and not kwargs and all(map(_is_matrix, args)):
            return steady_linear(args[0], args[1].t())
        if func in (*_SUMS, *_MEANS) and _is_stack(args, kwargs):
            total = _steady_sum(args[0])
            return total if func in _SUMS else total / len(args[0])
        return func(*args, **kwargs)


def _is_stack(args: Any, kwargs: Any) -> bool:
    """Whether a sum has these arguments: a tensor of three dimensions, and the first of them."""
    dims = [*args[1:], *kwargs.values()]
    return len(args) > 0 and args[0].dim() == 3 and len(args[0]) > 0 and dims == [0]


def _is_matrix(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and value.dim() == 2
