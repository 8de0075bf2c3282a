"""Remote calls between the processes of a job: endpoints, registry, collectives. Knows no graph."""

from ..utils.message_types import register_message
from .endpoint import Endpoint
from .peers.identity import Member, Peer, PeerAddress, current_deadline, current_peer
from .stats import EndpointStats
from .wire.codec import decode, decode_blob, encode
from .wire.encoded import Encoded

__all__ = [
    "Encoded",
    "Endpoint",
    "EndpointStats",
    "Member",
    "Peer",
    "PeerAddress",
    "current_deadline",
    "current_peer",
    "decode",
    "decode_blob",
    "encode",
    "register_message",
]
