"""Remote calls between the processes of a job: endpoints, registry, collectives. Knows no graph."""

from .codec import decode, decode_blob, encode, register_message
from .encoded import Encoded
from .endpoint import Endpoint
from .peers import Member, Peer, PeerAddress, current_deadline, current_peer
from .stats import EndpointStats

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
