"""Checkpoints of learned rows: the files that each owner writes, and the manifest that makes them one.

A directory has one checkpoint. Files are named by a tag of their own, and a new manifest takes the place of the old one
when all of them are there; then those of the old one go. Whoever is killed on the way leaves the old checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ...errors import InvalidArgumentError, PartitionFormatError, StorageError
from ...partition import PartitionBook
from ...partition.storage import META_FILE, ArrayFile, check_size, open_array, write_array
from ...utils.system.directory_lock import locked_directory
from ...utils.system.disk import disk_errors
from .settings import EmbeddingSettings
from .table import STATES, EmbeddingTable, RowState, new_rows

_FORMAT = "graphlearn_dist embedding"
_VERSION = 1
_CHUNK_ROWS = 1 << 16
_LOCK_S = 60.0
_OWN_NAME = re.compile(r"[0-9a-f]{16}-\d+-(ids|rows|state\d)\.npy")


@dataclass(frozen=True)
class Checkpoint:
    """What the manifest of a directory says.

    Attributes:
        folder: the directory.
        tag: tells it apart from all other checkpoints.
        settings: of the table.
        step: how many steps the rows had taken.
        optimizer: which one took them; empty where there was none.
        parts: by owner its files: ids, rows, then what the optimizer keeps of them.
    """

    folder: Path
    tag: str
    settings: EmbeddingSettings
    step: int
    optimizer: str
    parts: tuple[tuple[ArrayFile, ...], ...]

    @classmethod
    def read(cls, folder: Path, settings: EmbeddingSettings | None = None) -> Checkpoint:
        """The checkpoint in a directory; that of a table with these settings, unless None.

        Raises:
            StorageError: there is none, or its manifest or a file is damaged.
            InvalidArgumentError: it is that of another table.
        """
        path = folder / META_FILE
        text = _text_of(path)
        try:
            meta = json.loads(text)
        except ValueError as error:
            raise PartitionFormatError(f"{path}: cannot be read: {error}") from error
        if not isinstance(meta, dict) or (meta.get("format"), meta.get("version")) != (_FORMAT, _VERSION):
            raise PartitionFormatError(f"{path}: expected a checkpoint of an embedding, version {_VERSION}")
        if meta.pop("crc32", None) != _checksum(meta):
            raise PartitionFormatError(f"{path}: altered: its checksum is another one")
        try:
            own = EmbeddingSettings(**meta["settings"])
            parts = tuple(tuple(ArrayFile.from_dict(entry) for entry in part) for part in meta["parts"])
            found = cls(folder, str(meta["tag"]), own, int(meta["step"]), str(meta["optimizer"]), parts)
        except (KeyError, TypeError, ValueError) as error:
            raise PartitionFormatError(f"{path}: damaged: {error!r}") from error
        if found.optimizer not in STATES or found.step < 0:
            raise PartitionFormatError(f"{path}: damaged: step {found.step} of optimizer {found.optimizer!r}")
        for field in ("node_type", "num", "dim", "dtype"):
            if settings is not None and getattr(own, field) != getattr(settings, field):
                raise InvalidArgumentError(
                    f"directory: expected a checkpoint of {field} {getattr(settings, field)!r}, {folder} has "
                    f"{getattr(own, field)!r}"
                )
        try:
            for file in [file for part in parts for file in part]:
                check_size(folder, file)
        except StorageError:
            if _text_of(path) == text:
                raise
            return cls.read(folder, settings)  # another one was saved in its place meanwhile
        return found

    def state_of(
        self, ids: torch.Tensor, place_of: Callable[[torch.Tensor], torch.Tensor], settings: EmbeddingSettings
    ) -> RowState:
        """The rows of some ids, and what the optimizer keeps of them, in the order of ``ids``.

        Args:
            ids: int64 ``[n]``, those of one owner.
            place_of: gives for global ids, int64 ``[m]``, their places in ``ids``, -1 for others.
            settings: of the table that takes them, which say where rows lie.

        Raises:
            StorageError: a file is damaged, or a row is missing.
        """
        num_arrays = 1 + STATES[self.optimizer]
        dtype = getattr(torch, self.settings.dtype)
        arrays = [new_rows(settings, len(ids)) for _ in range(num_arrays)]
        seen = torch.zeros(len(ids), dtype=torch.bool)
        for part in self.parts:
            part_ids, *rows = (open_array(self.folder, file, verify=True) for file in part)
            if len(rows) != num_arrays or any(
                each.dtype != dtype or each.shape != (len(part_ids), self.settings.dim) for each in rows
            ):
                raise PartitionFormatError(f"{self.folder / META_FILE}: damaged: arrays of a part do not fit together")
            for begin in range(0, len(part_ids), _CHUNK_ROWS):
                places = place_of(part_ids[begin : begin + _CHUNK_ROWS])
                mine = places >= 0
                seen[places[mine]] = True
                for array, read in zip(arrays, rows, strict=True):
                    array[places[mine]] = read[begin : begin + _CHUNK_ROWS][mine]
        if not bool(seen.all()):
            raise PartitionFormatError(
                f"{self.folder}: expected a row for every id, none for {int((~seen).sum())}, such as "
                f"{int(ids[(~seen).nonzero()[0, 0]])}"
            )
        return RowState(arrays[0], self.optimizer, arrays[1:], self.step)


def _text_of(path: Path) -> str:
    """A manifest's."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StorageError(f"{path}: there is no checkpoint") from None
    except (OSError, ValueError) as error:
        raise PartitionFormatError(f"{path}: cannot be read: {error}") from error


def _checksum(meta: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def new_tag() -> str:
    """A tag that no other checkpoint has."""
    return secrets.token_hex(8)


def write_part(folder: Path, tag: str, part: int, ids: torch.Tensor, table: EmbeddingTable) -> list[dict[str, Any]]:
    """Writes what one owner has, and gives the entries of its files for the manifest.

    Raises:
        StorageError: the disk is full, or the directory cannot be written; nothing is left then.
    """
    state = table.state
    arrays = {"ids": ids, "rows": state.rows, **{f"state{i}": each for i, each in enumerate(state.optimizer_state)}}
    written: list[ArrayFile] = []
    paths = {name: f"{tag}-{part}-{name}.npy" for name in arrays}
    try:
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, array in arrays.items():
                chunks = (array[begin : begin + _CHUNK_ROWS] for begin in range(0, len(array), _CHUNK_ROWS))
                written.append(write_array(folder, paths[name], chunks, array.dtype, tuple(array.shape)))
                _reach_disk(folder / paths[name])
    except BaseException:
        for path in paths.values():
            (folder / path).unlink(missing_ok=True)
        raise
    return [file.to_dict() for file in written]


def _reach_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(
    folder: Path,
    settings: EmbeddingSettings,
    step: int,
    write: Callable[[str], tuple[str, Sequence[Sequence[Mapping[str, Any]]]]],
) -> None:
    """Makes a checkpoint of what owners write.

    Args:
        folder: the directory, which is made; an older checkpoint in it goes when the new one is whole.
        settings: of the table.
        step: of the rows.
        write: has all owners write their files under a tag; gives the optimizer, and the entries by owner.

    Raises:
        StorageError: a disk is full, or the directory is not the one that owners wrote to; the old checkpoint stays.
        InvalidArgumentError: the directory has something else, such as the checkpoint of another embedding.
    """
    tag = new_tag()
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with locked_directory(folder, _LOCK_S):
            _check_free(folder, settings)
            before = [path for path in folder.iterdir() if _OWN_NAME.fullmatch(path.name)]
            try:
                optimizer, parts = write(tag)
                meta = {
                    "format": _FORMAT,
                    "version": _VERSION,
                    "tag": tag,
                    "settings": asdict(settings),
                    "step": step,
                    "optimizer": optimizer,
                    "parts": [[*part] for part in parts],
                }
                meta["crc32"] = _checksum(meta)
                _check_written(folder, parts)
                temporary = folder / f".{META_FILE}.{tag}"
                temporary.write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
                _reach_disk(temporary)
                os.replace(temporary, folder / META_FILE)
                _reach_disk(folder)
            except BaseException:
                for path in [*folder.glob(f"{tag}-*.npy"), folder / f".{META_FILE}.{tag}"]:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
                raise
            for path in before:  # also what somebody left who was killed
                path.unlink(missing_ok=True)


def _check_free(folder: Path, settings: EmbeddingSettings) -> None:
    """InvalidArgumentError where a manifest is there that is no checkpoint of this embedding."""
    if not (folder / META_FILE).exists():
        return
    try:
        there = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
        own = there["settings"] if there["format"] == _FORMAT else {}
        found = (own["name"], own["node_type"])
    except (OSError, ValueError, TypeError, KeyError):
        raise InvalidArgumentError(
            f"directory: expected a new one, or one with a checkpoint of this embedding, {folder} has another "
            f"{META_FILE}"
        ) from None
    if found != (settings.name, settings.node_type):
        raise InvalidArgumentError(
            f"directory: expected one of its own for embedding {settings.name!r}, {folder} has a checkpoint of "
            f"{found[0]!r}"
        )


def _check_written(folder: Path, parts: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    for entry in [entry for part in parts for entry in part]:
        try:
            check_size(folder, ArrayFile.from_dict(dict(entry)))
        except PartitionFormatError as error:
            raise StorageError(
                f"directory: expected one that the servers and this trainer share, {folder} lacks what a server wrote: "
                f"{error}"
            ) from error


def places_in(book: PartitionBook, partition: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """For global ids their rows in a partition, -1 where another one owns them."""

    def place_of(ids: torch.Tensor) -> torch.Tensor:
        places = torch.full_like(ids, -1)
        mine = book[ids] == partition
        places[mine] = book.id2index[ids[mine]].long()
        return places

    return place_of
