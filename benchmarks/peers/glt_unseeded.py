"""GraphLearn-for-PyTorch without a seed."""

from __future__ import annotations

from peers import glt


class Adapter(glt.Adapter):
    """As ``peers.glt``."""

    seed = None
