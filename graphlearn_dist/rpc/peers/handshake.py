"""How two endpoints get to know each other, and prove that they know the token.

    connecting side                                   accepting side
    HELLO      identity, limits, nonce         →
                                               ←      CHALLENGE  identity, limits, nonce, MAC("accept")
    AUTH       MAC("connect")                  →
                                               ←      WELCOME

The MAC is HMAC-SHA256 under the token over a tag, both nonces and both identities with their limits, so that nothing
of it can be replayed, reflected, or used under another name. Without a token it is empty, which is allowed on
loopback and unix sockets only.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from typing import Any

from ..._C import pack
from ...errors import AuthenticationError, ProtocolError
from ..wire.gld1 import Kind, pack_frame, pack_head
from .identity import Peer

_NONCE_BYTES = 16
_MAX_NAME = 200
MAX_TIME_S = 3.0
MAX_PENDING = 64


@dataclass(frozen=True)
class Introduction:
    """What one side says about itself: who it is, its host's boot id, and what it grants to the other.

    ``answers_queries``: it takes QUERY frames, which are the native engine's business.
    """

    peer: Peer
    boot_id: str
    max_payload_bytes: int
    max_inflight: int
    answers_queries: bool = False

    def to_fields(self) -> list[Any]:
        """Plain values for the wire."""
        p = self.peer
        limits = [self.boot_id, self.max_payload_bytes, self.max_inflight, self.answers_queries]
        return [p.name, p.role, p.rank, p.incarnation, p.pid, p.host, *limits]

    @classmethod
    def from_fields(cls, fields: Any) -> Introduction:
        """Read ``to_fields``; ``ProtocolError`` where it is malformed."""
        kinds = (str, str, int, int, int, str, str, int, int, bool)
        if not isinstance(fields, list) or [type(value) for value in fields] != list(kinds):
            raise ProtocolError("handshake: malformed introduction")
        if any(len(value) > _MAX_NAME for value in fields if isinstance(value, str)) or min(fields[7:9]) < 1:
            raise ProtocolError("handshake: introduction out of bounds")
        return cls(Peer(*fields[:6]), *fields[6:])


class Handshake:
    """One side's half; frames go out by the caller's hand.

    Args:
        own: this side's introduction.
        token: the shared secret, or None.
        connecting: which half.
    """

    def __init__(self, own: Introduction, token: bytes | None, *, connecting: bool) -> None:
        self._own = own
        self._token = token
        self._connecting = connecting
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._other_nonce = b""
        self._expected = Kind.CHALLENGE if connecting else Kind.HELLO
        self.other: Introduction | None = None
        self.complete = False

    @property
    def own_name(self) -> str:
        """This side's name."""
        return self._own.peer.name

    def hello(self) -> bytes:
        """The connecting side's first frame."""
        return pack_frame(Kind.HELLO, 0, pack_head([self._own.to_fields(), self._nonce]))

    def receive(self, kind: Kind, meta: list[Any]) -> bytes | None:
        """Take the other side's frame; the answer to send, if any. ``complete`` says whether the peer is known.

        Raises:
            ProtocolError: not the frame that is due.
            AuthenticationError: the other side does not know the token.
        """
        if kind != self._expected:
            raise ProtocolError(f"handshake: expected {self._expected.name}, got {kind.name}")
        match kind:
            case Kind.HELLO:
                return self._answer_hello(meta)
            case Kind.CHALLENGE:
                return self._answer_challenge(meta)
            case Kind.AUTH:
                self._check("connect", meta[0] if meta else None)
                self.complete = True
                return pack_frame(Kind.WELCOME, 0, pack_head([]))
            case _:
                self.complete = True
                return None

    def _answer_hello(self, meta: list[Any]) -> bytes:
        if len(meta) != 2:
            raise ProtocolError("handshake: malformed HELLO")
        self._meet(meta[0], meta[1])
        self._expected = Kind.AUTH
        head = pack_head([self._own.to_fields(), self._nonce, self._mac("accept")])
        return pack_frame(Kind.CHALLENGE, 0, head)

    def _answer_challenge(self, meta: list[Any]) -> bytes:
        if len(meta) != 3:
            raise ProtocolError("handshake: malformed CHALLENGE")
        self._meet(meta[0], meta[1])
        self._check("accept", meta[2])
        self._expected = Kind.WELCOME
        return pack_frame(Kind.AUTH, 0, pack_head([self._mac("connect")]))

    def _meet(self, fields: Any, nonce: Any) -> None:
        if not isinstance(nonce, bytes) or len(nonce) != _NONCE_BYTES:
            raise ProtocolError("handshake: malformed nonce")
        self.other = Introduction.from_fields(fields)
        self._other_nonce = nonce

    def _mac(self, tag: str) -> bytes:
        if self._token is None:
            return b""
        sides = [
            (self._own.to_fields(), self._nonce),
            (self.other.to_fields() if self.other else [], self._other_nonce),
        ]
        if not self._connecting:
            sides.reverse()
        return hmac.digest(self._token, pack([tag, sides]), "sha256")

    def _check(self, tag: str, mac: Any) -> None:
        if not isinstance(mac, bytes) or not hmac.compare_digest(mac, self._mac(tag)):
            name = self.other.peer.name if self.other else "the peer"
            mine = "has a token" if self._token is not None else "has none"
            raise AuthenticationError(f"token: {name} could not prove that it knows ours (this side {mine})")
