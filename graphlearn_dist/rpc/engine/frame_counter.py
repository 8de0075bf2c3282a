"""Bytes of frames by what they are for, as ``csrc/rpc/frame_bytes.h`` counts them, for the engine in Python."""

from __future__ import annotations

from ..traffic import FRAME_USES, FrameBytes
from ..wire.gld1 import HEADER_BYTES, Header, Kind, read_header

_USES = {Kind.REQUEST: "request", Kind.RESPONSE: "answer", Kind.ERROR: "answer", Kind.EVENT: "event"}
_PLACES = {kind: FRAME_USES.index(_USES.get(kind, "control")) for kind in Kind}  # no queries come or go here


class FrameCounter:
    """One way of a connection; adds on one thread, may be read on any."""

    def __init__(self) -> None:
        self._on_socket, self._in_memory = [0] * len(FRAME_USES), [0] * len(FRAME_USES)

    @property
    def sums(self) -> FrameBytes:
        """What was counted until now."""
        return FrameBytes(tuple(self._on_socket), tuple(self._in_memory))

    def add(self, header: Header) -> None:
        """A frame."""
        place = _PLACES[header.kind]
        self._on_socket[place] += HEADER_BYTES + header.padded_head_len + header.inline_len
        self._in_memory[place] += header.payload_len - header.inline_len

    def add_frames(self, frames: bytes) -> None:
        """Whole frames of this side's, one behind the other; the payload of the last may lie elsewhere."""
        at = 0
        while at < len(frames):
            header = read_header(frames, at)
            self.add(header)
            at += HEADER_BYTES + header.padded_head_len + header.inline_len
