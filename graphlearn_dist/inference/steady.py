"""Operations whose rows do not depend on which other rows are computed at once.

A BLAS chooses its kernels by the shape, and the rows and columns at the edge of a matrix may be summed in another order
than those inside. Where the numbers of rows and columns are whole numbers of tiles, all of them are inside. That is
what was found of MKL on AVX2, with one thread; no BLAS promises it, and the tests look for it. A sum over the first of
three dimensions, as ``HeteroConv`` takes it over edge types, has another order at the end of a tensor as well.

Of functions of single numbers, such as ``sigmoid``, torch has two versions, one for whole vectors of a processor and
one for the numbers that are left over at the end, whose last bits differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

_TILE_ROWS = 64
_TILE_COLS = 16
_VECTOR = 64  # numbers; torch takes four vectors of at most 64 bytes at once
# One rounding or none: a vector has the bits of its numbers.
_EXACT = """
add sub rsub mul div neg abs relu leaky_relu sqrt reciprocal maximum minimum clamp clamp_min clamp_max threshold
hardtanh where masked_fill copy _to_copy clone fill eq ne lt le gt ge isinf isnan logical_and logical_or logical_not
bitwise_and bitwise_or bitwise_not sign floor ceil round nan_to_num
"""
_EXACT_NAMES = frozenset(_EXACT.split())


def steady_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``F.linear`` of float ``[n, k]``, each row of whose result depends on that row alone."""
    rows, cols = len(x), len(weight)
    more_rows, more_cols = -rows % _TILE_ROWS, -cols % _TILE_COLS
    if more_rows or not x.is_contiguous():
        x = F.pad(x, (0, 0, 0, more_rows)).contiguous()
    if more_cols:
        weight = F.pad(weight, (0, 0, 0, more_cols))
        bias = None if bias is None else F.pad(bias, (0, more_cols))
    return F.linear(x, weight.contiguous(), bias)[:rows, :cols].contiguous()


class SteadyRows(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, rows of this thread's operations do not depend on the other rows, as far as it knows them.

    Products of a matrix by another one are ``steady_linear``; sums and means over the first of three dimensions are
    taken one after the other; functions of single numbers see whole vectors alone, and so do batch norms.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        steady = _steady_version(func)
        return func(*args, **(kwargs or {})) if steady is None else steady(func, args, kwargs or {})


_Version = Callable[[Any, Sequence[Any], dict[str, Any]], Any]


@functools.cache
def _steady_version(func: Any) -> _Version | None:
    name = func._schema.name.partition("::")[2]
    if name in _VERSIONS:
        return _VERSIONS[name]
    returns = [str(each.type) for each in func._schema.returns]
    is_of_numbers = torch.Tag.pointwise in func.tags and returns == ["Tensor"]
    return _of_whole_vectors if is_of_numbers and name.removesuffix("_") not in _EXACT_NAMES else None


def _mm(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 2 or kwargs or not all(map(_is_matrix, args)):
        return func(*args, **kwargs)
    return steady_linear(args[0], args[1].t())


def _addmm(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 3 or kwargs or not all(map(_is_matrix, args[1:])) or args[0].layout != torch.strided:
        return func(*args, **kwargs)
    bias, x, weight = args
    if bias.shape == weight.shape[1:]:
        return steady_linear(x, weight.t(), bias)
    return steady_linear(x, weight.t()) + bias


def _is_matrix(value: Any) -> bool:
    return value.layout == torch.strided and value.dim() == 2 and bool(value.is_floating_point())


def _sum(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Of ``[parts, n, width]`` over the parts, one after the other."""
    if kwargs or len(args) < 2 or args[0].dim() != 3 or not len(args[0]) or [*args[1]] != [0] or any(args[2:]):
        return func(*args, **kwargs)
    return functools.reduce(torch.add, args[0].unbind(0))


def _mean(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) < 2 or args[0].dim() != 3 or not len(args[0]) or [*args[1]] != [0] or any(args[2:]):
        return func(*args, **kwargs)
    return _sum(func, args, kwargs) / len(args[0])


def _batch_norm(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Of rows that do not depend on each other: with the statistics of the training, which are given."""
    x = args[0]
    if x.dim() != 2 or (func._schema.name == "aten::native_batch_norm" and args[5]):
        return func(*args, **kwargs)
    filled = F.pad(x, (0, 0, 0, -len(x) % _TILE_ROWS)).contiguous()  # rows that are apart are rounded otherwise
    found, *others = func(filled, *args[1:], **kwargs)
    return (found[: len(x)], *others)


def _of_whole_vectors(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """A function of single numbers, each of which is in a whole vector."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    shape = tensors[0].shape if tensors else torch.Size()
    alike = all(each.shape == shape and each.layout == torch.strided for each in tensors)
    count = shape.numel()
    if not alike or not shape or not count or any(isinstance(value, torch.Tensor) for value in kwargs.values()):
        return func(*args, **kwargs)
    if count % _VECTOR == 0 and all(each.is_contiguous() for each in tensors):
        return func(*args, **kwargs)

    def filled(arg: Any) -> Any:
        return F.pad(arg.reshape(-1), (0, -count % _VECTOR)) if isinstance(arg, torch.Tensor) else arg

    found = func(*map(filled, args), **kwargs)[:count].view(shape)
    return tensors[0].copy_(found) if func._schema.is_mutable else found


_VERSIONS: dict[str, _Version] = {
    "mm": _mm,
    "addmm": _addmm,
    "sum": _sum,
    "mean": _mean,
    "native_batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _batch_norm,
}
