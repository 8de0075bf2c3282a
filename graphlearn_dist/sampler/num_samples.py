"""How many nodes of each type HGT sampling takes: what users give, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from ..data.schema import GraphSchema
from ..errors import InvalidArgumentError
from ..utils.shown import shown

MAX_SAMPLES = 2**31 - 1  # of a type in one iteration: a batch has fewer nodes


def check_num_samples(num_samples: Any) -> Any:
    """Samples by iteration as a list, or as a dict of lists, checked as far as that goes without a data set.

    Raises:
        InvalidArgumentError: something else, no iteration, a negative number, or lists that differ in length.
    """
    if not isinstance(num_samples, Mapping):
        return _checked(num_samples)
    by_type = {node_type: _checked(counts) for node_type, counts in num_samples.items()}
    lengths = sorted({len(counts) for counts in by_type.values()})
    if len(lengths) > 1:
        raise InvalidArgumentError(f"num_samples: expected as many iterations for every node type, got {lengths}")
    return by_type


def _checked(counts: Any) -> list[int]:
    if not isinstance(counts, Sequence) or isinstance(counts, str):
        raise InvalidArgumentError(
            f"num_samples: expected a list with the nodes that each iteration takes, got {shown(counts)}"
        )
    if not counts:
        raise InvalidArgumentError("num_samples: expected at least one iteration, got an empty list")
    for count in counts:
        is_count = isinstance(count, Integral) and not isinstance(count, bool) and 0 <= int(count) <= MAX_SAMPLES
        if not is_count:
            raise InvalidArgumentError(f"num_samples: expected numbers from 0 to {MAX_SAMPLES}, got {shown(count)}")
    return list(map(int, counts))


def samples_by_type(schema: GraphSchema, num_samples: Any) -> tuple[tuple[int, ...], ...]:
    """``[node type][iteration]``, of samples for a data set.

    Raises:
        InvalidArgumentError: as ``check_num_samples``; or a node type is unknown, or has no samples.
    """
    given = check_num_samples(num_samples)
    if not isinstance(given, dict):
        return (tuple(given),) * len(schema.node_types)
    known = "no named types" if schema.is_homogeneous else ", ".join(map(str, schema.node_types))
    for node_type in given:
        if node_type not in schema.node_types:
            raise InvalidArgumentError(f"num_samples: unknown node type {node_type!r}; the data set has {known}")
    for node_type in schema.node_types:
        if node_type not in given:
            raise InvalidArgumentError(
                f"num_samples: expected numbers for every node type, got none for {node_type!r}; [0, ...] takes none"
            )
    return tuple(tuple(given[node_type]) for node_type in schema.node_types)
