"""Links without leakage: edges that no batch whose links they are may pass messages along."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ... import _C
from ...core import check_index_vector, to_tensor
from ...errors import InvalidArgumentError, UnknownIdError
from ...messages import Subgraph
from ...typing import EdgeType
from ...utils.message_types import register_message
from ...utils.shown import shown
from ..base import EdgeSamplerInput

ReverseIds = torch.Tensor | Mapping[EdgeType, torch.Tensor] | None
ReverseTypes = Mapping[EdgeType, EdgeType] | None

MODES = ("self", "reverse_id", "reverse_types")
NO_EDGE = -1
"""Stands for the id of a link that is no edge of the graph."""


@register_message
@dataclass(frozen=True)
class Exclusion:
    """Which edges a batch of links leaves out, as ``dgl.dataloading.as_edge_prediction_sampler`` names them.

    Attributes:
        mode: ``"self"``, ``"reverse_id"`` or ``"reverse_types"``.
        reverse_eids: of ``"reverse_id"``, int64 ``[num_edges]``: the id of each edge's reverse, of the links' own type.
        reverse_type: of ``"reverse_types"``, the edge type in which the reverse of an edge has the edge's id.
    """

    mode: str
    reverse_eids: torch.Tensor | None = None
    reverse_type: EdgeType | None = None

    def of(self, links: EdgeSamplerInput, edge_ids: torch.Tensor) -> EdgeSamplerInput:
        """The links with what is excluded for each, given their ids int64 ``[n]`` (-1: no edge of the graph).

        Raises:
            UnknownIdError: an id that ``reverse_eids`` has no entry for.
        """
        links = replace(links, excluded=edge_ids)
        if self.mode == "reverse_types":
            return replace(links, excluded_reverse=edge_ids, reverse_type=self.reverse_type)
        if self.reverse_eids is None:
            return links
        largest = int(edge_ids.max()) if edge_ids.numel() else NO_EDGE
        if largest >= len(self.reverse_eids):
            raise UnknownIdError(f"reverse_eids: expected an entry for edge {largest}, got {len(self.reverse_eids)}")
        is_edge = edge_ids != NO_EDGE
        reverse = torch.full_like(edge_ids, NO_EDGE)
        reverse[is_edge] = self.reverse_eids[edge_ids[is_edge]]
        return replace(links, excluded_reverse=reverse, reverse_type=links.input_type)


def to_exclusion(
    exclude: str | None,
    edge_type: EdgeType | None,
    reverse_eids: ReverseIds = None,
    reverse_etypes: ReverseTypes = None,
) -> Exclusion | None:
    """What a loader's arguments of these names say of links of one type; None where nothing is excluded.

    Raises:
        InvalidArgumentError: no such mode, or it lacks its ``reverse_eids`` or ``reverse_etypes``, or has those of
            another.
    """
    if exclude is not None and exclude not in MODES:
        raise InvalidArgumentError(f"exclude: expected one of {MODES} or None, got {shown(exclude)}")
    for name, given, mode in (
        ("reverse_eids", reverse_eids, "reverse_id"),
        ("reverse_etypes", reverse_etypes, "reverse_types"),
    ):
        if (given is not None) != (exclude == mode):
            expected, got = ("None", "some") if exclude != mode else ("it", "None")
            raise InvalidArgumentError(f"{name}: expected {expected} with exclude={exclude!r}, got {got}")
    match exclude:
        case None:
            return None
        case "self":
            return Exclusion("self")
        case "reverse_id":
            return Exclusion("reverse_id", reverse_eids=_reverse_ids(reverse_eids, edge_type))
    return Exclusion("reverse_types", reverse_type=_reverse_type(reverse_etypes, edge_type))


def _reverse_ids(given: Any, edge_type: EdgeType | None) -> torch.Tensor:
    if isinstance(given, Mapping):
        if edge_type not in given:
            raise InvalidArgumentError(f"reverse_eids: expected those of the links' type {edge_type}, got {[*given]}")
        given = given[edge_type]
    return check_edge_ids(given, "reverse_eids")


def check_edge_ids(given: Any, name: str, count: int | None = None) -> torch.Tensor:
    """Ids of edges as int64 ``[n]``, -1 where there is none; ``count`` of them, if that is known.

    Raises:
        InvalidArgumentError: wrong type, dtype or length.
        UnknownIdError: an id below -1.
    """
    ids = check_index_vector(given, name).to(torch.int64)
    if count is not None and ids.numel() != count:
        raise InvalidArgumentError(f"{name}: expected one id for each of {count} links, got {ids.numel()}")
    if ids.numel() and (least := int(ids.min())) < NO_EDGE:
        raise UnknownIdError(f"{name}: expected ids of edges, or {NO_EDGE} for none, got {least}")
    return ids


def check_excluded(links: EdgeSamplerInput, num_edge_ids: Callable[[EdgeType | None], int | None]) -> None:
    """UnknownIdError where links leave out edges that the graph does not have.

    Args:
        links: may leave out nothing.
        num_edge_ids: gives what the ids of a type's edges are below, 0 for a type that is not there; None: not known.
    """
    reverse_name = "reverse_eids" if links.reverse_type == links.input_type else "reverse_etypes"
    for name, edge_ids, edge_type in (
        ("edge_label_id (excluded)", links.excluded, links.input_type),
        (f"{reverse_name} (excluded_reverse)", links.excluded_reverse, links.reverse_type),
    ):
        if edge_ids is None or not edge_ids.numel():
            continue
        count, largest = num_edge_ids(edge_type), int(edge_ids.max())
        if count is not None and largest >= count:
            edges = "edges" if edge_type is None else f"edges of type {edge_type}"
            known = f"ids of {edges}, which are below {count}, or" if count else f"as the graph has no {edges}, only"
            raise UnknownIdError(f"{name}: expected {known} {NO_EDGE} for none, got {largest}")


def _reverse_type(given: Any, edge_type: EdgeType | None) -> EdgeType:
    if not isinstance(given, Mapping) or edge_type is None or edge_type not in given:
        got = [*given] if isinstance(given, Mapping) else type(given).__name__
        raise InvalidArgumentError(f"reverse_etypes: expected the reverse of the links' type {edge_type}, got {got}")
    reverse = tuple(given[edge_type])
    if len(reverse) != 3 or (reverse[0], reverse[2]) != (edge_type[2], edge_type[0]):
        raise InvalidArgumentError(
            f"reverse_etypes: expected a type from {edge_type[2]!r} to {edge_type[0]!r}, got {reverse}"
        )
    return reverse


def with_excluded(links: EdgeSamplerInput, excluding: EdgeSamplerInput | None) -> EdgeSamplerInput:
    """Links that leave out what other ones do (the same links), or nothing."""
    if excluding is None:
        return links
    return replace(
        links,
        excluded=excluding.excluded,
        excluded_reverse=excluding.excluded_reverse,
        reverse_type=excluding.reverse_type,
    )


def _kept_edges(
    edge_index: torch.Tensor, edge_ids: torch.Tensor, excluded: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Edges and ids without the excluded ones, and the positions of these, ascending."""
    if edge_ids.device.type == "cpu":
        pairs, ids, dropped = _C.drop_edges(edge_index, edge_ids, excluded)
        return to_tensor(pairs), to_tensor(ids), to_tensor(dropped)
    is_dropped = torch.isin(edge_ids, excluded)
    is_kept = ~is_dropped
    return edge_index[:, is_kept], edge_ids[is_kept], is_dropped.nonzero().view(-1)


def without_edges(sampled: Subgraph, edge_type: int, excluded: torch.Tensor) -> Subgraph:
    """A sampled subgraph without the edges of a type that have these ids, int64 ``[m]``; nodes stay.

    Both ends of an excluded edge are seeds, so that no node is there for its sake alone (but in trees).
    """
    edge_ids = sampled.edge_ids[edge_type] if edge_type < len(sampled.edge_ids) else None  # links may be of no edges
    if edge_ids is None:
        return sampled
    edge_index, edge_ids, dropped = _kept_edges(sampled.edge_index[edge_type], edge_ids, excluded)
    per_hop = sampled.num_sampled_edges[edge_type]
    if per_hop:  # edges of an induced subgraph belong to no hop
        ends = torch.tensor([*itertools.accumulate(per_hop)], device=dropped.device)
        lost = [0, *torch.searchsorted(dropped, ends).tolist()]  # up to the end of each hop
        per_hop = tuple(
            n - (after - before) for n, (before, after) in zip(per_hop, itertools.pairwise(lost), strict=True)
        )

    def changed(by_type: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
        return (*by_type[:edge_type], value, *by_type[edge_type + 1 :])

    return replace(
        sampled,
        edge_index=changed(sampled.edge_index, edge_index),
        edge_ids=changed(sampled.edge_ids, edge_ids),
        num_sampled_edges=changed(sampled.num_sampled_edges, per_hop),
    )
