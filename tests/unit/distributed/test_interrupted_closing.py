"""A closing that is interrupted, as by Ctrl-C, keeps nothing that comes after it from its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from graphlearn_dist.distributed.producers.local_producers import CollocatedProducer, MpProducer


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("interrupted", ["_end_copies", "_end_upcoming"])
def test_a_collocated_loader(interrupted: str) -> None:
    ended: list[str] = []
    producer = CollocatedProducer.__new__(CollocatedProducer)
    stand_ins = {
        "_end_copies": lambda: None,
        "_end_upcoming": lambda: None,
        "_thread": SimpleNamespace(stop=lambda: ended.append("thread")),
        "_peers": SimpleNamespace(close=lambda: ended.append("peers")),
        "_batches": SimpleNamespace(forget_rows=lambda: ended.append("rows")),
        "_row_counts": SimpleNamespace(close=lambda: ended.append("counts")),
    }
    for name, stand_in in {**stand_ins, interrupted: _interrupt}.items():
        setattr(producer, name, stand_in)
    with pytest.raises(KeyboardInterrupt):
        producer._release()
    assert ended == ["thread", "peers", "rows", "counts"]


@pytest.mark.parametrize("interrupted", ["copies", "workers"])
def test_a_loader_of_sampling_processes(interrupted: str) -> None:
    ended: list[str] = []

    def run(closing: Any) -> None:
        closing.close()
        if interrupted == "workers":
            raise KeyboardInterrupt

    producer: Any = MpProducer.__new__(MpProducer)
    producer._end_copies = _interrupt if interrupted == "copies" else lambda: None
    producer._thread = SimpleNamespace(is_running=True, run=run, stop=lambda: ended.append("thread"))
    with pytest.raises(KeyboardInterrupt):
        producer._release()
    assert ended == ["thread"]
