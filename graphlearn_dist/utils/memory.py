"""How much memory this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


def memory_limit_bytes(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int:
    """The least of the memory that the host has and what control groups (of version 1 or 2) grant this process.

    Args:
        groups: lists the process's groups, see cgroups(7).
        mount: where they are mounted.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits_above(mount, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_above(mount / "memory", path, "memory.limit_in_bytes")
    return min(limits)


def _limits_above(root: Path, path: str, name: str) -> list[int]:
    """The limits of a group and of all that contain it; within a container only some of them can be seen."""
    group = root / path.lstrip("/")
    found = []
    for directory in (group, *group.parents):
        if (directory / name).is_file():
            text = (directory / name).read_text().strip()
            if text.isdigit():  # else "max"
                found.append(int(text))
        if directory == root:
            break
    return found
