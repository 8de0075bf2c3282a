"""The RPC between two processes of this host, against what the sockets and the memory can do in the same run.

Prints the median round trip of a 1 KB request, and for answers of 1 MB and 10 MB (8 in flight) the throughput and the
CPU seconds of both processes per GB, over TCP, unix sockets, and unix sockets with the arena. The ceilings are a
blocking pair of sockets with preallocated buffers, and a warm copy.

    python benchmarks/bench_rpc.py [--seconds 1.0] [--json results.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.rpc import Endpoint, PeerAddress

IN_FLIGHT = 8
SIZES = {"1 MB": 1_000_000, "10 MB": 10_000_000}
SETTINGS = RpcSettings(num_threads=1)
ENGINES = {
    "tcp": (False, replace(SETTINGS, arena_bytes=0)),
    "unix": (True, replace(SETTINGS, arena_bytes=0)),
    "unix + arena": (True, SETTINGS),
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    size: str
    mb_per_s: float | None = None
    cpu_s_per_gb: float | None = None
    p50_us: float | None = None


def cpu_seconds() -> float:
    """CPU time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# --- the other process -----------------------------------------------------------------------------------------


def serve(engine: str) -> None:
    """An endpoint that answers until its standard input ends."""
    use_unix, settings = ENGINES[engine]
    answers = {size: torch.zeros(size, dtype=torch.uint8) for size in SIZES.values()}
    with Endpoint("server", 0, settings=settings, use_unix=use_unix) as endpoint:

        async def get(size: int) -> torch.Tensor:
            return answers[size]

        async def echo(x: torch.Tensor) -> torch.Tensor:
            return x

        async def cpu() -> float:
            return cpu_seconds()

        for function in (get, echo, cpu):
            endpoint.register(function.__name__, function)
        address = endpoint.address
        print(json.dumps([address.host, address.port, address.unix, address.boot_id, address.name]), flush=True)
        sys.stdin.read()


def pump(family: str, size: int) -> None:
    """Send ``size`` bytes for each byte received, from one preallocated buffer; print the CPU seconds per GB."""
    where: Any = json.loads(sys.stdin.readline())
    sock = socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET)
    sock.connect("\0" + where if family == "unix" else tuple(where))
    tune(sock)
    data = bytes(size)
    cpu, sent = cpu_seconds(), 0
    with sock:
        while sock.recv(1):
            sock.sendall(data)
            sent += size
    print((cpu_seconds() - cpu) / (sent / 1e9), flush=True)


def tune(sock: socket.socket) -> None:
    """The same socket options as the engine's."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def other(*arguments: str) -> subprocess.Popen[str]:
    """This program in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    """End a process by the end of its input; what it printed last."""
    try:
        return process.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


# --- measuring -------------------------------------------------------------------------------------------------


def repeat(step: Callable[[], None], seconds: float) -> tuple[int, float]:
    """Run ``step`` for about ``seconds``; how often, and the exact time."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        count += 1
    return count, time.perf_counter() - start


def bench_engine(engine: str, seconds: float) -> list[Row]:
    """One way of connecting two endpoints."""
    use_unix, settings = ENGINES[engine]
    process = other("--serve", engine)
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe")
        address = PeerAddress(*json.loads(process.stdout.readline()))
        with Endpoint("client", 0, settings=settings, use_unix=use_unix) as client:
            rows = [bench_round_trip(client, address, engine, seconds)]
            rows += [bench_answers(client, address, engine, label, size, seconds) for label, size in SIZES.items()]
        return rows
    finally:
        finish(process)


def bench_round_trip(client: Endpoint, address: PeerAddress, engine: str, seconds: float) -> Row:
    """1 KB there and back, one at a time."""
    tensor = torch.zeros(1024, dtype=torch.uint8)
    times: list[float] = []

    def step() -> None:
        start = time.perf_counter()
        client.call(address, "echo", tensor)
        times.append(time.perf_counter() - start)

    for _ in range(100):
        client.call(address, "echo", tensor)
    repeat(step, seconds)
    return Row(engine, "1 KB", p50_us=statistics.median(times) * 1e6)


def bench_answers(client: Endpoint, address: PeerAddress, engine: str, label: str, size: int, seconds: float) -> Row:
    """Large answers, several in flight."""
    futures = deque(client.request(address, "get", size) for _ in range(IN_FLIGHT))

    def step() -> None:
        futures.append(client.request(address, "get", size))
        futures.popleft().result()

    repeat(step, seconds / 4)
    cpu = cpu_seconds() + client.call(address, "cpu")
    count, elapsed = repeat(step, seconds)
    cpu = cpu_seconds() + client.call(address, "cpu") - cpu
    for future in futures:
        future.result()
    return Row(engine, label, size * count / elapsed / 1e6, cpu / (size * count / 1e9))


def bench_ceiling(family: str, label: str, size: int, seconds: float) -> Row:
    """Blocking sockets, preallocated buffers, nothing else."""
    with socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET) as listener:
        listener.bind(f"\0gld-bench-{os.getpid()}-{size}" if family == "unix" else ("127.0.0.1", 0))
        listener.listen()
        process = other("--pump", family, str(size))
        if process.stdin is None:
            raise RuntimeError("no pipe")
        name = listener.getsockname()
        process.stdin.write(json.dumps(name[1:].decode() if family == "unix" else name) + "\n")
        process.stdin.flush()
        listener.settimeout(20)
        sock, _ = listener.accept()
    with sock:
        sock.settimeout(None)
        tune(sock)
        view = memoryview(bytearray(size))

        def step() -> None:
            sock.send(b"x")
            filled = 0
            while filled < size:
                filled += sock.recv_into(view[filled:])

        sock.send(b"x" * 4)  # some ahead, so that both sides work at once
        repeat(step, seconds / 4)
        mine = cpu_seconds()
        count, elapsed = repeat(step, seconds)
        mine = cpu_seconds() - mine
        sock.shutdown(socket.SHUT_WR)
        while sock.recv_into(view):
            pass
    cpu = mine / (size * count / 1e9) + float(finish(process))
    return Row(f"blocking sockets, {family}", label, size * count / elapsed / 1e6, cpu)


def bench_copy(label: str, size: int, seconds: float) -> Row:
    """A copy into warm memory."""
    source, target = numpy.zeros(size, numpy.uint8), numpy.zeros(size, numpy.uint8)
    cpu = cpu_seconds()
    count, elapsed = repeat(lambda: numpy.copyto(target, source), seconds)
    cpu = cpu_seconds() - cpu
    return Row("memcpy, warm", label, size * count / elapsed / 1e6, cpu / (size * count / 1e9))


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="time of each measurement")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--serve", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--pump", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if options.pump:
        pump(options.pump[0], int(options.pump[1]))
        return
    rows: list[Row] = []
    for engine in ENGINES:
        rows += bench_engine(engine, options.seconds)
    for label, size in SIZES.items():
        rows += [bench_ceiling(family, label, size, options.seconds) for family in ("tcp", "unix")]
        rows.append(bench_copy(label, size, options.seconds))
    machine = {
        "cpus": os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kernel": platform.release(),
    }
    print("  ".join(f"{key}={value}" for key, value in machine.items()))
    print(f"{'what':28}{'size':>8}{'p50 µs':>10}{'MB/s':>10}{'CPU-s/GB':>10}")
    for row in rows:
        columns = ((row.p50_us, 0), (row.mb_per_s, 0), (row.cpu_s_per_gb, 2))
        cells = [f"{value:.{digits}f}" if value is not None else "-" for value, digits in columns]
        print(f"{row.what:28}{row.size:>8}{cells[0]:>10}{cells[1]:>10}{cells[2]:>10}")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rows": [vars(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
