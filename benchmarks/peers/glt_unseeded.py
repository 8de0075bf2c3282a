"""GraphLearn-for-PyTorch without a seed: each call then makes a random device and a generator of its own."""

from __future__ import annotations

from peers import glt


class Adapter(glt.Adapter):
    """As ``peers.glt``."""

    seed = None
