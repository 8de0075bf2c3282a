"""The machine's memory ceilings with one thread: ``ceilings.cpp``, compiled when first asked for."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import print_table

ROW_BYTES = (64, 128, 256, 400, 512, 1024, 2048, 4096)
_COMPILE_S = 120
_AHEAD_BYTES = (2048, 4096, 8192, 16384)  # how far ahead pays depends on the machine: all are tried


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The compiled functions."""
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "ceilings.so"
        command = [compiler, "-O3", "-march=native", "-std=c++17", "-shared", "-fPIC"]
        source = Path(__file__).with_suffix(".cpp")
        subprocess.run([*command, str(source), "-o", str(target)], check=True, timeout=_COMPILE_S)
        loaded = ctypes.CDLL(str(target))
    loaded.copy_rows.restype = ctypes.c_bool
    return loaded


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def copy_rows(data: np.ndarray, rows: np.ndarray, ahead_bytes: int, out: np.ndarray) -> None:
    """``out[i] = data[rows[i]]`` for uint8 ``[n, width]`` data of a width in ``ROW_BYTES`` and int64 rows."""
    width = data.shape[1]
    ahead = min(max(ahead_bytes // width, 1), 64)
    arguments = (_pointer(data), _pointer(rows), ctypes.c_int64(rows.size), ctypes.c_int64(width))
    if not library().copy_rows(*arguments, ctypes.c_int64(ahead), _pointer(out)):
        raise SystemExit(f"rows of {width} bytes: expected one of {ROW_BYTES}")


def seconds(call: Callable[[], object]) -> float:
    """Processor seconds of one call of this thread: what others on the machine take away in between does not count."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def best_distance(data: np.ndarray, rows: np.ndarray, out: np.ndarray, tries: int = 3) -> int:
    """Bytes ahead with which ``copy_rows`` is fastest here."""
    return min(
        _AHEAD_BYTES, key=lambda ahead: min(seconds(lambda: copy_rows(data, rows, ahead, out)) for _ in range(tries))
    )


def _best(call: Callable[[], object], work: float, repeats: int) -> float:
    """Work per second of the fastest call: others on the machine only ever slow it down."""
    return work / min(seconds(call) for _ in range(repeats))


def measure(*, quick: bool = False) -> dict[str, float]:
    """Rates per second by name: ``memcpy_bytes``, ``random_4_byte_reads``, ``random_64_byte_reads``.

    Random places lie in 1 GiB (64 MiB if quick).
    """
    size, count, repeats = (64 << 20, 1 << 16, 2) if quick else (1 << 30, 1 << 22, 9)
    data = np.ones(size, np.uint8)
    out = np.zeros(size // 4, np.uint8)
    generator = np.random.default_rng(0)
    length = ctypes.c_int64(out.size)
    rates = {
        "memcpy_bytes": _best(lambda: library().copy_bytes(_pointer(out), _pointer(data), length), out.size, repeats)
    }
    for granule, function in ((4, library().read_4_bytes), (64, library().read_64_bytes)):
        places = generator.integers(0, size // granule, count)
        arguments = (_pointer(data), _pointer(places), ctypes.c_int64(count))
        rates[f"random_{granule}_byte_reads"] = _best(functools.partial(function, *arguments), count, repeats)
    return rates


def print_limits(limits: dict[str, float]) -> None:
    """The ceilings as a table."""
    rows = [["memcpy", f"{limits['memcpy_bytes'] / 1e9:.1f} GB/s read and as much written"]]
    rows += [[f"random {size}-byte reads", f"{limits[f'random_{size}_byte_reads'] / 1e6:.0f} M/s"] for size in (4, 64)]
    print_table("ceilings of this machine, one thread, many accesses in flight", ["what", "rate"], rows)
