"""Arrays of a partition directory: ``.npy`` files with a recorded dtype, shape, size and checksum."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import torch

from .. import _C
from ..errors import InvalidArgumentError, PartitionFormatError, StorageError
from ..utils.paths import to_path
from ..utils.system.disk import disk_errors
from ..utils.system.scratch import scratch_folder

META_FILE = "META.json"
_OWN_NAME = re.compile(r"META\.json|part\d+")  # what says that there are partitions already
_READ_BYTES = 8 << 20
_WRITE_BYTES = 1 << 20  # what a cache still has of the checksum when it is written
_PARSER_TRIES = 10
_CHECKSUM = re.compile(r"[0-9a-f]{8}")
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.uint16, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    )
}


@dataclass(frozen=True)
class ArrayFile:
    """What META.json says of one file.

    Attributes:
        path: relative to the partition directory, with ``/``.
        dtype: torch's name, such as ``"float32"``; bfloat16 is stored as its bits, int16.
        shape: extents.
        num_bytes: size of the file, header included.
        crc32: checksum of the whole file, eight hexadecimal digits.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    crc32: str

    def to_dict(self) -> dict[str, Any]:
        """The entry in META.json."""
        return {
            "path": self.path,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.num_bytes,
            "crc32": self.crc32,
        }

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> ArrayFile:
        """Reads an entry; PartitionFormatError if it is not one, or names a file outside the directory."""
        try:
            path, dtype, shape = entry["path"], entry["dtype"], entry["shape"]
            num_bytes, crc32 = entry["bytes"], entry["crc32"]
            is_one = (
                # Type names are percent-encoded, so that a path has no other characters.
                all(isinstance(text, str) and text.isascii() and text.isprintable() for text in (path, dtype, crc32))
                and dtype in _DTYPES
                and all(type(number) is int and number >= 0 for number in (num_bytes, *shape))
                and _CHECKSUM.fullmatch(crc32) is not None
            )
        except (KeyError, TypeError) as error:
            raise PartitionFormatError(f"META.json: file entry {entry!r:.300}: {error!r}") from error
        if not is_one or not path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise PartitionFormatError(
                f"META.json: file entry {entry!r:.300}: not a relative path, a known dtype, extents and bytes of at "
                "least 0, and a CRC-32"
            )
        return cls(path, dtype, tuple(shape), num_bytes, crc32)


def dtype_name(dtype: torch.dtype, path: str = "") -> str:
    """The name under which a dtype is stored, in a file; StorageError for one that the format has not."""
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise StorageError(f"{path and path + ': '}dtype: expected one of {', '.join(_DTYPES)}, got {name}")
    return name


def stored_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """numpy's dtype of what is in the file; bfloat16 is stored as its bits."""
    stored = torch.int16 if dtype == torch.bfloat16 else dtype
    return torch.empty(0, dtype=stored).numpy().dtype


def _as_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def new_directory(path: str | os.PathLike[str]) -> Path:
    """``path``; InvalidArgumentError unless nothing is there, or a directory without a partition directory's files."""
    directory = to_path("output_dir", path)
    if directory.exists() and not directory.is_dir():
        raise InvalidArgumentError(f"output_dir: expected a directory, got the file {directory}")
    names = os.listdir(directory) if directory.exists() else []
    if found := sorted(filter(_OWN_NAME.fullmatch, names)):
        raise InvalidArgumentError(
            f"output_dir: expected a directory without partitions, got {directory}, which has {', '.join(found)}; "
            "nothing is overwritten"
        )
    return directory


@contextmanager
def written_in_place(directory: Path) -> Iterator[Path]:
    """A folder beside ``directory`` to write into, which gets this name at the end, or is gone where writing fails.

    Raises:
        StorageError: the disk is full, or fails.
    """
    with (
        disk_errors(directory),
        scratch_folder(directory.absolute().parent, f".{directory.name}.partial-") as temporary,
    ):
        yield temporary
        put_in_place(temporary, directory)


def put_in_place(written: Path, directory: Path) -> None:
    """Gives a complete partition directory its name, or moves it beside the files that are there, META.json last.

    Raises:
        InvalidArgumentError: there are files of the same names, or another partition directory by now.
    """
    try:
        os.replace(written, directory)
        return
    except OSError:
        new_directory(directory)  # there is something in it; if that is not the reason, what follows fails likewise
    names = sorted((entry.name for entry in written.iterdir()), key=lambda name: (name == META_FILE, name))
    taken = [name for name in names if (directory / name).exists()]
    if taken:
        raise InvalidArgumentError(f"output_dir: expected no {', '.join(taken)} in {directory}; nothing is overwritten")
    for name in names:
        os.replace(written / name, directory / name)
    written.rmdir()


class ArrayWriter:
    """An array file that is written from its first row to its last, some at a time.

    Args:
        root: the directory.
        path: of the file in it.
        dtype: of the rows, and what is stored.
        shape: of the whole; a number without dimensions is one row.
    """

    def __init__(self, root: Path, path: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._path, self._dtype, self._shape = path, dtype, shape
        self._name, self._num_rows = dtype_name(dtype, path), 0
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(target, "wb")  # noqa: SIM115 (close() does)
        header = {"descr": np.lib.format.dtype_to_descr(stored_dtype(dtype)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)
        self._file.flush()
        self._checksum = _C.crc32(target.read_bytes())

    def append(self, chunk: torch.Tensor) -> None:
        """Writes the next rows."""
        if chunk.dtype != self._dtype or tuple(chunk.shape[1:]) != self._shape[1:]:
            raise StorageError(
                f"{self._path}: expected chunks {self._name} [*, {self._shape[1:]}], got {chunk.dtype} "
                f"{tuple(chunk.shape)}"
            )
        self._num_rows += len(chunk) if self._shape else 1
        if chunk.numel():
            data = _as_numpy(chunk).reshape(-1).view(np.uint8).data
            for begin in range(0, len(data), _WRITE_BYTES):
                piece = data[begin : begin + _WRITE_BYTES]
                self._checksum = _C.crc32(piece, self._checksum)
                self._file.write(piece)

    def finish(self) -> ArrayFile:
        """Closes the file; StorageError unless all its rows came."""
        num_bytes = self._file.tell()
        self.close()
        if self._num_rows != (expected := self._shape[0] if self._shape else 1):
            raise StorageError(f"{self._path}: expected {expected} rows, got {self._num_rows}")
        return ArrayFile(self._path, self._name, self._shape, num_bytes, f"{self._checksum:08x}")

    def close(self) -> None:
        """Closes the file as it is."""
        self._file.close()

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def write_array(
    root: Path, path: str, chunks: Iterable[torch.Tensor], dtype: torch.dtype, shape: tuple[int, ...]
) -> ArrayFile:
    """Writes the concatenation of ``chunks`` (over dimension 0) as ``root/path``, one chunk in memory at a time.

    A number without dimensions is one chunk.
    """
    with ArrayWriter(root, path, dtype, shape) as writer:
        for chunk in chunks:
            writer.append(chunk)
        return writer.finish()


def file_of_other_rows(
    files: Mapping[str, ArrayFile], path: str, num_parts: int, dtype: str, row_shape: tuple[int, ...]
) -> ArrayFile | None:
    """A partition's file of the same name as ``path`` (``part<i>/...``) whose rows have another dtype or shape."""
    _, name = path.split("/", 1)
    same_name = (files.get(f"part{p}/{name}") for p in range(num_parts))
    return next((f for f in same_name if f is not None and (f.dtype, f.shape[1:]) != (dtype, row_shape)), None)


def check_rows_alike(
    files: Mapping[str, ArrayFile], path: str, num_parts: int, dtype: str, row_shape: tuple[int, ...], name: str
) -> None:
    """InvalidArgumentError, about ``name``, where another partition's file of this name has other rows than these."""
    other = file_of_other_rows(files, path, num_parts, dtype, row_shape)
    if other is not None:
        raise InvalidArgumentError(
            f"{name}: expected rows {other.dtype} {list(other.shape[1:])}, as {other.path} has, got {dtype} "
            f"{list(row_shape)} for {path}"
        )


def row_chunks(data: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype, chunk_size: int) -> Iterator[torch.Tensor]:
    """The rows ``ids`` of ``data`` in ``dtype``, ``chunk_size`` at a time."""
    for begin in range(0, len(ids), chunk_size):
        yield data[ids[begin : begin + chunk_size]].to(dtype)


def write_tensor(root: Path, path: str, tensor: torch.Tensor) -> ArrayFile:
    """Writes one tensor as ``root/path``."""
    return write_array(root, path, [tensor], tensor.dtype, tuple(tensor.shape))


def checksum_of(path: Path) -> str:
    """CRC-32 of a file, read a piece at a time, as eight hexadecimal digits."""
    checksum = 0
    with open(path, "rb") as file:
        while piece := file.read(_READ_BYTES):
            checksum = _C.crc32(piece, checksum)
    return f"{checksum:08x}"


def check_checksum(path: Path, crc32: str) -> None:
    """PartitionFormatError unless the file has the checksum that META.json says."""
    try:
        found = checksum_of(path)
    except OSError as error:
        raise PartitionFormatError(f"{path}: cannot be read: {error}") from error
    if found != crc32:
        raise PartitionFormatError(f"{path}: altered: expected CRC-32 {crc32}, found {found}")


def check_size(root: Path, file: ArrayFile) -> None:
    """PartitionFormatError unless the file exists with the size that META.json says."""
    try:
        found = os.stat(root / file.path)
    except OSError as error:
        raise PartitionFormatError(f"{root / file.path}: expected {file.num_bytes} bytes, got {error}") from error
    if found.st_size != file.num_bytes or not stat.S_ISREG(found.st_mode):
        what = "" if stat.S_ISREG(found.st_mode) else " in what is no file"
        raise PartitionFormatError(f"{root / file.path}: expected {file.num_bytes} bytes, found {found.st_size}{what}")


def open_array(root: Path, file: ArrayFile, *, verify: bool) -> torch.Tensor:
    """Maps a file copy-on-write: pages are read when touched, shared between processes, and writes stay private.

    Args:
        root: the partition directory.
        file: what META.json says of the file.
        verify: read the whole file first and compare its checksum.

    Raises:
        PartitionFormatError: the file is missing, truncated, altered, or not the array that was recorded.
    """
    path = root / file.path
    check_size(root, file)
    if verify:
        check_checksum(path, file.crc32)
    dtype = _DTYPES[file.dtype]
    try:
        with open(path, "rb") as opened:
            offset = _check_header(path, file, opened)
            if 0 in file.shape:  # nothing to map
                return torch.empty(file.shape, dtype=dtype)
            array = np.memmap(opened, dtype=stored_dtype(dtype), mode="c", offset=offset, shape=file.shape)
    except OSError as error:
        raise PartitionFormatError(f"{path}: expected a .npy array, got {error}") from error
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if dtype == torch.bfloat16 else tensor


def _check_header(path: Path, file: ArrayFile, opened: IO[bytes]) -> int:
    """Where the values of a ``.npy`` file begin; PartitionFormatError unless it is the recorded array, of this size."""
    dtype, read = stored_dtype(_DTYPES[file.dtype]), np.lib.format
    readers: dict[Any, Any] = {(1, 0): read.read_array_header_1_0, (2, 0): read.read_array_header_2_0}
    try:
        shape, is_fortran, found = _parsed(readers[read.read_magic(opened)], opened)
    except Exception as error:  # damaged: the reader of headers has errors of many kinds for that
        raise PartitionFormatError(f"{path}: expected a .npy array, got {error!r:.300}") from error
    if shape != file.shape or found != dtype or (is_fortran and len(shape) > 1):
        raise PartitionFormatError(f"{path}: expected {file.dtype} {list(file.shape)}, found {found} {list(shape)}")
    size, offset = os.fstat(opened.fileno()).st_size, opened.tell()
    # Memory beyond the end of a file is mapped as well, and reading it ends the process.
    if size != offset + math.prod(shape) * dtype.itemsize:
        raise PartitionFormatError(
            f"{path}: expected {offset + math.prod(shape) * dtype.itemsize} bytes for {file.dtype} {list(shape)}, "
            f"found {size}"
        )
    return offset


def _parsed(reader: Callable[[IO[bytes]], Any], opened: IO[bytes]) -> Any:
    """What a reader of numpy's makes of a header, by Python's parser.

    Two threads in that parser may disturb each other (Python before 3.11.8 and 3.12.2, python/cpython#106905): then it
    raises SystemError, which no bytes are to blame for, and parses them well when asked again.
    """
    start = opened.tell()
    for _ in range(_PARSER_TRIES - 1):
        try:
            return reader(opened)
        except SystemError:
            opened.seek(start)
    return reader(opened)


def open_constants(
    root: Path, entries: Iterable[dict[str, Any]], files: Mapping[str, ArrayFile], *, verify: bool
) -> dict[Any, dict[str, Any]]:
    """By type and name, the attributes without rows that META.json names: values, or files that hold them."""
    constants: dict[Any, dict[str, Any]] = {}
    for entry in entries:
        key = tuple(entry["type"]) if isinstance(entry["type"], list) else entry["type"]
        value = entry["value"] if "value" in entry else open_array(root, files[entry["file"]], verify=verify)
        constants.setdefault(key, {})[entry["name"]] = value
    return constants
