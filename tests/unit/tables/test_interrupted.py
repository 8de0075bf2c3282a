"""A killed build goes on, and ends with the same bits; a full disk is an error, and nothing passes for finished."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from graphlearn_dist.errors import InvalidArgumentError, StorageError, TableError
from tests.support.processes import ProcessFailure, start

from .shop import SCARCE, Shop, arrays_of, make, meta_of

DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    Shop.make().write(folder, files=2, group=100)
    return folder


@pytest.fixture(scope="module")
def reference(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(Shop.make().config(tables), tmp_path_factory.mktemp("reference") / "g", working=SCARCE)


@pytest.fixture(scope="module")
def near_reference(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions of near nodes, which are made of random ones in the end."""
    return make(Shop.make().config(tables), tmp_path_factory.mktemp("near") / "g", working=SCARCE, kind="ldg")


def run(tables: Path, directory: Path, at: int | None, resume: bool = False, kind: str = "random") -> int:
    """See ``dying.run``; raises ProcessFailure where it was killed."""
    arguments = {"folder": str(tables), "directory": str(directory), "at": at, "resume": resume, "kind": kind}
    with start("tests.unit.tables.dying.run", **arguments) as it:
        return int(it.wait(DEADLINE_S))


def places(count: int, total: int) -> list[int]:
    return sorted(random.Random(11).sample(range(1, total + 1), count))


def kill_and_resume(tables: Path, reference: Path, folder: Path, count: int, kind: str = "random") -> None:
    total = run(tables, folder / "whole", None, kind=kind)
    assert arrays_of(folder / "whole") == arrays_of(reference)
    for number, at in enumerate(places(count, total)):
        directory = folder / f"g{number}"
        if number % 3 == 2:
            directory.mkdir()
            (directory / "notes.txt").write_text("a file that was there")
        with pytest.raises(ProcessFailure, match="ended with -9"):
            run(tables, directory, at, kind=kind)
        assert not (directory / "META.json").exists() or at == total
        if number % 2:  # and again, on its way
            with pytest.raises(ProcessFailure, match="ended with -9"):
                run(tables, directory, 3, resume=True, kind=kind)
        make(Shop.make().config(tables), directory, working=SCARCE, resume=True, kind=kind)
        assert meta_of(directory) == meta_of(reference)
        assert not list(folder.glob(".*"))


def test_nothing_goes_on_from_what_is_finished(tables: Path, tmp_path: Path) -> None:
    directory = make(Shop.make().config(tables), tmp_path / "g")
    with pytest.raises(InvalidArgumentError, match=r"resume: .*/g is finished; there is no build to go on with"):
        make(Shop.make().config(tables), directory, resume=True)


def test_killed_builds_go_on(tables: Path, reference: Path, tmp_path: Path) -> None:
    kill_and_resume(tables, reference, tmp_path, 4)


def test_killed_builds_of_near_partitions_go_on(tables: Path, near_reference: Path, tmp_path: Path) -> None:
    kill_and_resume(tables, near_reference, tmp_path, 6, kind="ldg")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["random", "ldg"])
def test_killed_builds_go_on_wherever_they_were(
    kind: str, tables: Path, reference: Path, near_reference: Path, tmp_path: Path
) -> None:
    kill_and_resume(tables, near_reference if kind == "ldg" else reference, tmp_path, 40, kind=kind)


def test_finished_stages_are_not_run_again(tables: Path, reference: Path, tmp_path: Path) -> None:
    total = run(tables, tmp_path / "whole", None)
    with pytest.raises(ProcessFailure, match="ended with -9"):
        run(tables, tmp_path / "g", total - 20)
    told: list[str] = []
    config = Shop.make().config(tables)
    make(config, tmp_path / "g", working=SCARCE, resume=True, progress=lambda p: told.append(p.stage))
    assert set(told) <= {"write edges user buys item", "write reverse edges user buys item"}
    assert meta_of(tmp_path / "g") == meta_of(reference)


def test_what_changed_since_is_an_error(tables: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tables, tmp_path / "t")
    with pytest.raises(ProcessFailure, match="ended with -9"):
        run(folder, tmp_path / "g", 30)
    with pytest.raises(InvalidArgumentError, match=r"resume: .* but num_parts differs"):
        make(Shop.make().config(folder), tmp_path / "g", parts=3, resume=True)
    file = next(folder.glob("buys*"))
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises((InvalidArgumentError, TableError)):
        make(Shop.make().config(folder), tmp_path / "g", resume=True)


def test_state_that_is_damaged_is_an_error(tables: Path, tmp_path: Path) -> None:
    with pytest.raises(ProcessFailure, match="ended with -9"):
        run(tables, tmp_path / "g", 60)
    (tmp_path / ".g.build" / "STATE.json").write_text('{"fingerprint": {')
    with pytest.raises(StorageError, match=r"STATE.json: cannot be read .*build without --resume"):
        make(Shop.make().config(tables), tmp_path / "g", resume=True)
    make(Shop.make().config(tables), tmp_path / "g")


def test_two_builds_of_one_directory(tables: Path, tmp_path: Path) -> None:
    from graphlearn_dist.utils.system.directory_lock import locked_directory

    (tmp_path / ".g.build").mkdir()
    with locked_directory(tmp_path / ".g.build", 1.0), pytest.raises(StorageError, match="another process held"):
        make(Shop.make().config(tables), tmp_path / "g")


@pytest.mark.parametrize("kind", ["random", "ldg"])
def test_no_file_may_grow(kind: str, tables: Path, reference: Path, near_reference: Path, tmp_path: Path) -> None:
    """A limit on the size of files is met wherever a large one is written: maps, buckets, arrays, the zones' graph."""
    reference = near_reference if kind == "ldg" else reference
    largest = max(entry["bytes"] for entry in arrays_of(reference).values())
    for number, share in enumerate([0.01, 0.2, 0.9]):
        directory = tmp_path / f"g{number}"
        file_bytes = int(largest * share)
        arguments = {"folder": str(tables), "directory": str(directory), "file_bytes": file_bytes, "kind": kind}
        with start("tests.unit.tables.dying.run_with_small_files", **arguments) as process:
            error = process.wait(DEADLINE_S)
        assert error.startswith("StorageError: ")
        assert not directory.exists()
        make(Shop.make().config(tables), directory, working=SCARCE, resume=True, kind=kind)
        assert meta_of(directory) == meta_of(reference)


@contextmanager
def small_disk(where: Path, size: int) -> Iterator[Path]:
    where.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(where)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", str(where)], check=True)  # the error that was raised may still map a file of it


@pytest.mark.parametrize("kind", ["random", "ldg"])
def test_full_disk(kind: str, tables: Path, reference: Path, near_reference: Path, tmp_path: Path) -> None:
    """Ten disks that are full at ten moments; with more room the build goes on."""
    reference = near_reference if kind == "ldg" else reference
    pages = sum(-(-entry["bytes"] // 4096) for entry in arrays_of(reference).values())
    for number, size in enumerate(random.Random(5).sample(range(2, pages), 10)):
        with small_disk(tmp_path / f"disk{number}", size * 4096) as disk:
            with pytest.raises(StorageError):
                make(Shop.make().config(tables), disk / "g", working=SCARCE, kind=kind)
            assert not (disk / "g").exists()
            subprocess.run(["mount", "-o", "remount,size=64M", str(disk)], check=True)
            make(Shop.make().config(tables), disk / "g", working=SCARCE, resume=True, kind=kind)
            assert meta_of(disk / "g") == meta_of(reference)
