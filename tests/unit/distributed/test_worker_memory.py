"""What a sampling worker uses its part of a loader's memory for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlearn_dist.distributed.sampling.recent_rows import AskedRows, keep_of, most_used
from graphlearn_dist.distributed.workers.worker_memory import WorkerMemory

MIB = 1 << 20
FEW = [AskedRows(["x"], 100, 5000, 4000)]
MANY = [AskedRows(["x"], 100, 10**9, 10**9)]
KINDS = st.lists(
    st.builds(AskedRows, st.just(["x"]), st.integers(0, 5000), st.just(10**7), st.integers(-5, 10**6)), max_size=3
)


def test_no_share_is_taken_for_rows_that_are_not_kept() -> None:
    whole = WorkerMemory.divide(8 * MIB)
    assert (whole.region, whole.ring, whole.recent_rows) == (7 * MIB, MIB, 0)
    assert WorkerMemory.divide(8 * MIB, None, MANY) == whole
    assert WorkerMemory.divide(8 * MIB, 0, FEW) == whole
    assert WorkerMemory.divide(8 * MIB, None, FEW).recent_rows == 4000 * 140
    assert WorkerMemory.divide(8 * MIB, 300_000, FEW).recent_rows == 300_000
    assert WorkerMemory.divide(8 * MIB, 100_000, FEW) == whole
    assert WorkerMemory.divide(8 * MIB, None, None).recent_rows == MIB


@given(nbytes=st.integers(0, 1 << 32), wish=st.none() | st.integers(0, 1 << 32), asked=st.none() | KINDS)
def test_all_of_it_is_used_once(nbytes: int, wish: int | None, asked: list[AskedRows] | None) -> None:
    memory = WorkerMemory.divide(nbytes, wish, asked)
    assert memory.region + memory.ring + memory.recent_rows == max(nbytes, 128 << 10)
    assert memory.region + memory.ring == memory.largest_batch >= 128 << 10
    assert memory.region > 0
    assert memory.ring > 0
    assert memory.recent_rows >= 0


@given(nbytes=st.integers(0, 1 << 28), asked=KINDS)
def test_rows_take_no_more_than_they_may(nbytes: int, asked: list[AskedRows]) -> None:
    asked = [AskedRows([f"{i}"], of.row_bytes, of.num_ids, of.count) for i, of in enumerate(asked)]
    kept = keep_of(asked, nbytes)
    sizes = [
        kept[name].native.block_rows * 8 * (of.row_bytes + 40) for of in asked for name in of.stores if name in kept
    ]
    assert sum(sizes) <= most_used(asked, nbytes) <= nbytes
    if sum((of.row_bytes + 40) * (of.count + 8) for of in asked if of.row_bytes and of.count > 0) <= nbytes:
        for of in asked:
            if of.row_bytes and of.count > 0:
                assert kept[of.stores[0]].native.block_rows * 8 >= of.count


@pytest.mark.parametrize("nbytes", [999, 1000 * 140 // 4 - 1])
def test_less_than_a_quarter_keeps_nothing(nbytes: int) -> None:
    assert keep_of([AskedRows(["x"], 100, 1000, 1000)], nbytes) == {}
