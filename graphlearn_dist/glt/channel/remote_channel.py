"""``RemoteReceivingChannel`` as ``graphlearn_torch.channel.remote_channel`` has it."""

from __future__ import annotations

from typing import Any

from ...channel import remote_channel
from ...data.schema import GraphSchema
from ...distributed.dist_client import request_server
from ...distributed.dist_server import DistServer
from .sample_message import to_sample_message

__all__ = [
    "RemoteReceivingChannel",
]


class RemoteReceivingChannel(remote_channel.RemoteReceivingChannel):
    """``graphlearn_dist.channel.RemoteReceivingChannel``, which gives sample messages."""

    _schema: GraphSchema | None = None

    def recv(self, **kwargs: Any) -> Any:
        """The message of the next batch; raises as the base class does."""
        batch = super().recv(**kwargs)
        if self._schema is None:
            rank, _ = self._servers[0]
            outline = request_server(rank, DistServer.get_outline)
            self._schema = GraphSchema(
                tuple(one.node_type for one in outline.nodes),
                tuple(one.edge_type for one in outline.edges),
                tuple(one.count for one in outline.nodes),
                outline.edge_dir,
            )
        return to_sample_message(batch, self._schema)
