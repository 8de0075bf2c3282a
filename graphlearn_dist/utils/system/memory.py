"""How much memory this process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
_AVAILABLE = Path("/proc/meminfo")
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # of groups of version 2 and 1
_HELD = ({"anon", "shmem"}, {"total_rss", "total_shmem"})  # likewise, in memory.stat: what no file can take back


def memory_limit_bytes(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int:
    """The least of the memory that the host has and what control groups (of version 1 or 2) grant this process.

    Args:
        groups: lists the process's groups, see cgroups(7).
        mount: where they are mounted.
    """
    return min([_host_bytes(), *(limit for limit, _ in _limits(groups, mount))])


def memory_left_bytes(groups: Path = _GROUPS, mount: Path = _MOUNT, available: Path = _AVAILABLE) -> int:
    """What of ``memory_limit_bytes`` is not held by processes or as shared memory; pages of files give way.

    Args:
        groups, mount: see there.
        available: says what the host has left, see proc_meminfo(5).
    """
    host = _numbers(available, "MemAvailable:")
    left = [host * 1024 if host else _host_bytes()]
    return max(min([*left, *(limit - held for limit, held in _limits(groups, mount))]), 0)


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limits(groups: Path, mount: Path) -> Iterator[tuple[int, int]]:
    """Of each group with a limit that the process is in, the limit and what its processes hold."""
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _limits_above(mount, path, 0)
        elif "memory" in controllers.split(","):
            yield from _limits_above(mount / "memory", path, 1)


def _limits_above(root: Path, path: str, version: int) -> Iterator[tuple[int, int]]:
    """Of a group and of all that contain it; within a container only some of them can be seen."""
    group = root / path.lstrip("/")
    for directory in (group, *group.parents):
        if (directory / _LIMITS[version]).is_file():
            text = (directory / _LIMITS[version]).read_text().strip()
            if text.isdigit():  # else "max"
                yield int(text), _numbers(directory / "memory.stat", *_HELD[version])
        if directory == root:
            break


def _numbers(path: Path, *names: str) -> int:
    """The sum of the numbers behind these names, each the first word of a line; 0 where there is no such file."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return sum(int(words[1]) for words in map(str.split, lines) if words and words[0] in names)
