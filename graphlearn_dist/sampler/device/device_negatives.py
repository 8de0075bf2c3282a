"""Negatives that a GPU draws: those of the CPU, bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from ... import _C
from ...data.device.stream_uses import StreamUses
from ...data.schema import GraphSchema
from ...errors import UnknownIdError
from ...utils.device import device_number
from ...utils.device_exchange import Reading
from ..links.negative_slots import DrawnEnd, FilledSlots, NegativeSlots


class DeviceNegatives:
    """Draws negatives in one launch on the caller's current stream, a thread a slot in all its rounds. Thread-safe.

    Args:
        graphs: by edge type of the schema, in memory that the device reads.
        schema: types and counts of the graph.
        node_times: by node type int64 ``[num_nodes]``, or None; copied to the device when they are first needed.
        device: the GPU. On the CPU device the host runs the kernels' bodies, one after the other.
        uses: of whoever holds this object and the graphs: is told the streams that read them, and what is copied.
    """

    def __init__(
        self,
        graphs: Sequence[_C.DeviceCsr],
        schema: GraphSchema,
        node_times: Sequence[torch.Tensor | None],
        device: torch.device,
        uses: StreamUses,
    ) -> None:
        self._graphs = graphs
        self._uses = uses
        self._schema = schema
        self._node_times = node_times
        self._device = device
        self._lock = threading.Lock()
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the identity of the first of each

    def fill(self, edge_type: int, slots: NegativeSlots) -> FilledSlots:
        """See ``negative_slots.fill_by_asking``. For strict negatives the host waits, to learn which slots are open."""
        targets = self._empty(slots.count)
        is_open = torch.empty(slots.count, dtype=torch.uint8, device=self._device)
        given = slots.sources if isinstance(slots.sources, torch.Tensor) else None
        sources = self._empty(slots.count) if given is None else given.to(self._device)
        if slots.count > 0:
            source_type, target_type = self._ends(edge_type)
            drawn = slots.sources
            _C.draw_negatives_on_device(
                self._graphs[edge_type] if slots.strict else None,
                self._schema.edge_dir == "out",
                sources if isinstance(drawn, torch.Tensor) else self._native_end(source_type, drawn, sources),
                self._native_end(target_type, slots.targets, targets),
                slots.key,
                slots.trials,
                is_open,
                device_number(self._device),
                self._uses.note(),
            )
        open_slots = is_open.nonzero().view(-1) if slots.strict else self._empty(0)
        return FilledSlots(sources, targets, open_slots)

    def has_edges(self, edge_type: int, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See ``GraphAccess``; the answer lies where the sources do, and the host waits for it."""
        rows, cols = (sources, targets) if self._schema.edge_dir == "out" else (targets, sources)
        found = torch.empty(rows.numel(), dtype=torch.uint8, device=self._device)
        status = torch.full((1,), -1, dtype=torch.int64, device=self._device)
        _C.has_edges_on_device(
            self._graphs[edge_type],
            rows.to(self._device),
            cols.to(self._device),
            found,
            status,
            device_number(self._device),
            self._uses.note(),
        )
        (bad,) = Reading(status).wait()
        if bad >= 0:
            raise UnknownIdError(
                f"sources, targets: at position {bad}, {int(sources[bad])} or {int(targets[bad])} is outside the graph"
            )
        return found.to(sources.device, torch.bool)

    def _ends(self, edge_type: int) -> tuple[int, int]:
        """The node types of sources and of targets."""
        rows, cols = self._schema.edge_specs[edge_type]
        return (rows, cols) if self._schema.edge_dir == "out" else (cols, rows)

    def _native_end(self, node_type: int, end: DrawnEnd, nodes: torch.Tensor) -> _C.DrawnEnd:
        limit = end.limit
        return _C.DrawnEnd(
            end.num_nodes,
            None if end.weights is None else self._copied(end.weights.weights),
            None if end.weights is None else self._copied(end.weights.sums),
            None if limit is None else self._copied(self._node_times[node_type]),
            None if limit is None else limit.limits.to(self._device),
            -1 if limit is None else limit.earliest,
            end.stride,
            end.first,
            nodes,
            device_number(self._device),
        )

    def _copied(self, values: torch.Tensor | None) -> torch.Tensor | None:
        """Values of the whole graph on the device, copied once."""
        if values is None:
            return None
        with self._lock:
            if id(values) not in self._copies:
                self._copies[id(values)] = values, values.to(self._device)
                self._uses.add(self._copies[id(values)][1])
            return self._copies[id(values)][1]

    def _empty(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.int64, device=self._device)
