"""How a server's memory for its clients is divided, and where its size comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphlearn_dist.distributed.server.memory_budget import MemoryBudget, Room, ServerMemory
from graphlearn_dist.errors import InvalidArgumentError, ResourceInsufficientError
from graphlearn_dist.utils.system.memory import memory_left_bytes, memory_limit_bytes

MIB = 1 << 20


def test_rooms_are_never_more_than_the_budget() -> None:
    """However many come, the next one gets its part of what is free; what is given back is there for others."""
    budget = MemoryBudget(160 * MIB)
    rooms: list[Room] = []
    while (free := 160 * MIB - sum(room.nbytes for room in rooms)) >= (6 + len(rooms)) * MIB // 4:
        rooms.append(budget.take(1 << 40, 1))
        assert rooms[-1].nbytes == free // (5 + len(rooms))
    assert len(rooms) > 32
    assert sum(room.nbytes for room in rooms) == budget.used_bytes <= 160 * MIB
    message = rf"memory_budget: 1 more sampling workers need 0\.25 MiB .* {len(rooms)} loaders have"
    with pytest.raises(ResourceInsufficientError, match=message):
        budget.take(1 << 40, 1)
    for room in rooms:
        room.give_back()
        room.give_back()
    assert (budget.used_bytes, budget.num_rooms) == (0, 0)
    assert budget.take(MIB, 4).nbytes == MIB  # who wants less gets no more
    assert budget.take(1000, 4).nbytes == MIB  # but what its workers need


def test_rooms_for_several_workers() -> None:
    budget = MemoryBudget(6 * MIB)
    assert budget.take(1 << 40, 4).nbytes == MIB
    with pytest.raises(
        ResourceInsufficientError, match=r"4 more sampling workers need 1\.00 MiB .* 1 loaders have 1\.00"
    ):
        budget.take(1 << 40, 4)


def test_parts_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ServerMemory.of("64MB")
    assert memory.batches + memory.arena == 64 * MIB
    assert memory.batches == 60 * MIB
    monkeypatch.setenv("GLD_MEMORY_BUDGET", "64MB")
    assert ServerMemory.of(None) == memory
    monkeypatch.setenv("GLD_MEMORY_BUDGET", "much")
    with pytest.raises(InvalidArgumentError, match="memory_budget: expected a size such as '64MB'"):
        ServerMemory.of(None)
    monkeypatch.delenv("GLD_MEMORY_BUDGET")
    default = ServerMemory.of(None)
    assert default.batches + default.arena == memory_limit_bytes() // 2


def test_a_budget_that_is_too_small() -> None:
    with pytest.raises(InvalidArgumentError, match=r"memory_budget: expected at least 1572864 bytes .* got 1048576"):
        MemoryBudget(MIB)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/job/step\n", {"job/memory.max": "7000000\n", "job/step/memory.max": "max\n"}, 7_000_000),
        ("0::/job/step\n", {"memory.max": "5000000\n"}, 5_000_000),  # in a container the group's own path is not there
        ("5:cpu,memory:/box\n0::/\n", {"memory/box/memory.limit_in_bytes": "6000000\n"}, 6_000_000),
        ("3:cpu:/box\n", {"cpu/memory.max": "1\n"}, None),
        ("0::/\n", {}, None),
    ],
)
def test_limits_of_control_groups(tmp_path: Path, groups: str, files: dict[str, str], expected: int | None) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    host = memory_limit_bytes(tmp_path / "none", tmp_path)
    assert host > 1 << 28
    assert memory_limit_bytes(tmp_path / "cgroup", tmp_path) == (expected or host)


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/job\n", {"job/memory.max": "900\n", "job/memory.stat": "anon 100\nfile 700\nshmem 20\n"}, 780),
        (
            "5:memory:/box\n",
            {
                "memory/box/memory.limit_in_bytes": "900\n",
                "memory/box/memory.stat": "rss 5\ntotal_rss 300\ntotal_shmem 1\ntotal_cache 600\n",
            },
            599,
        ),
        (  # the group that has least left counts, whichever has the lowest limit
            "0::/job/step\n",
            {
                "job/memory.max": "900\n",
                "job/memory.stat": "anon 800\n",
                "job/step/memory.max": "500\n",
                "job/step/memory.stat": "anon 100\n",
            },
            100,
        ),
        ("0::/job\n", {"job/memory.max": "900\n"}, 900),
        ("0::/job\n", {"job/memory.max": "900\n", "job/memory.stat": "anon 1000\n"}, 0),
        ("0::/job\n", {"job/memory.max": "max\n", "job/memory.stat": "anon 1000\n"}, 2048),
    ],
)
def test_what_is_left_of_memory(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    """Pages of files give way, what processes hold does not."""
    files = {"cgroup": groups, "meminfo": "MemTotal: 9 kB\nMemAvailable:   2 kB\n", **files}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_left_bytes(tmp_path / "cgroup", tmp_path, tmp_path / "meminfo") == expected
    host = memory_left_bytes(tmp_path / "none", tmp_path, tmp_path / "none")
    assert host == memory_limit_bytes(tmp_path / "none", tmp_path)
