"""The RPC between two processes of this host, against what the sockets and the memory can do in the same run.

Prints, for both engines, the median round trip of a 1 KB request, small requests per second (16 in flight), and for
answers of 1 MB and 10 MB (8 in flight) the throughput and the CPU seconds of both processes per GB, over TCP, unix
sockets, and unix sockets with the arena. "Busy" is the same while another thread of the asking process runs Python all
the time. Then what an idle pair costs, and how long a dead and a frozen server, and a dead client, stay unnoticed. The
ceilings are a blocking pair of sockets with preallocated buffers, also with another thread beyond each socket for the
round trip, and a warm copy. ``--tls`` adds TCP under TLS, which
the engine in Python has.

    python benchmarks/bench_rpc.py [--seconds 0.5] [--tls] [--json results.json]
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import json
import os
import platform
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch

from graphlearn_dist.config import RPC_ENGINES, RpcSettings, TlsSettings
from graphlearn_dist.rpc import Endpoint, PeerAddress

IN_FLIGHT = 8
SIZES = {"1 MB": 1_000_000, "10 MB": 10_000_000}
SMALL_IN_FLIGHT = 16
DEADLINE_S = 20.0
SETTINGS = RpcSettings(num_threads=1)
TRANSPORTS = {
    "tcp": (False, replace(SETTINGS, arena_bytes=0)),
    "unix": (True, replace(SETTINGS, arena_bytes=0)),
    "unix + arena": (True, SETTINGS),
}
TLS = "tcp + tls"


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    size: str
    mb_per_s: float | None = None
    cpu_s_per_gb: float | None = None
    p50_us: float | None = None
    per_s: float | None = None
    idle_percent: float | None = None
    noticed_s: float | None = None


COLUMNS = {"p50_us": "p50 µs", "per_s": "per s", "mb_per_s": "MB/s", "cpu_s_per_gb": "CPU-s/GB"}
COLUMNS |= {"idle_percent": "idle CPU %", "noticed_s": "noticed s"}
DIGITS = {"p50_us": 0, "per_s": 0, "mb_per_s": 0, "cpu_s_per_gb": 2, "idle_percent": 2, "noticed_s": 2}


def cpu_seconds() -> float:
    """CPU time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# --- the other process -----------------------------------------------------------------------------------------


def serve(engine: str, transport: str, folder: str) -> None:
    """An endpoint that answers until its standard input ends."""
    use_unix, settings = place(transport, folder)
    answers = {size: torch.zeros(size, dtype=torch.uint8) for size in SIZES.values()}
    lost = threading.Event()
    with Endpoint("server", 0, settings=replace(settings, engine=engine), use_unix=use_unix) as endpoint:

        async def get(size: int) -> torch.Tensor:
            return answers[size]

        async def echo(x: torch.Tensor) -> torch.Tensor:
            return x

        async def cpu() -> float:
            return cpu_seconds()

        async def hang() -> None:
            await endpoint.loop.create_future()

        def wait_for_loss() -> float:
            lost.wait(DEADLINE_S)
            return time.monotonic()

        for function in (get, echo, cpu, hang, wait_for_loss):
            endpoint.register(function.__name__, function)
        endpoint.on_peer_lost(lambda peer, why: lost.set())
        address = endpoint.address
        print(json.dumps([address.host, address.port, address.unix, address.boot_id, address.name]), flush=True)
        sys.stdin.read()


def connect_and_hang(where: str) -> None:
    """A client with requests in flight, to be killed."""
    with Endpoint("client", 1) as client:
        address = PeerAddress(*json.loads(where))
        client.call(address, "cpu")
        futures = [client.request(address, "hang") for _ in range(IN_FLIGHT)]
        print("ready", flush=True)
        wait(futures)


def pump(family: str, size: int) -> None:
    """Send ``size`` bytes for each byte received, from one preallocated buffer; print the CPU seconds per GB."""
    data = bytes(size)
    with connect_back(family) as sock:
        cpu, sent = cpu_seconds(), 0
        while sock.recv(1):
            sock.sendall(data)
            sent += size
    print((cpu_seconds() - cpu) / (sent / 1e9), flush=True)


def pong(family: str, hops: str) -> None:
    """Send back what comes, from another thread if there are hops."""
    with connect_back(family) as sock:
        came, data = os.eventfd(0), bytearray(1024)

        def answer() -> None:
            while os.eventfd_read(came):
                sock.sendall(data)

        if hops == "yes":
            threading.Thread(target=answer, daemon=True).start()
        while receive(sock, memoryview(data)):
            if hops == "yes":
                os.eventfd_write(came, 1)
            else:
                sock.sendall(data)


def connect_back(family: str) -> socket.socket:
    """A socket to the listener named on the standard input."""
    where: Any = json.loads(sys.stdin.readline())
    sock = socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET)
    sock.connect("\0" + where if family == "unix" else tuple(where))
    tune(sock)
    return sock


def receive(sock: socket.socket, view: memoryview) -> bool:
    """Fill the buffer; False at the end."""
    filled = 0
    while filled < view.nbytes:
        count = sock.recv_into(view[filled:])
        if count == 0:
            return False
        filled += count
    return True


def tune(sock: socket.socket) -> None:
    """The same socket options as the engine's."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 512 << 10)
    if sock.family != socket.AF_UNIX:
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


@functools.cache
def certificates() -> str:
    """A folder with an authority, and a certificate of this host's."""
    import trustme  # of the tests' environment

    folder = tempfile.TemporaryDirectory(prefix="gld-bench-")
    atexit.register(folder.cleanup)
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(f"{folder.name}/authority.pem")
    issued.private_key_and_cert_chain_pem.write_to_path(f"{folder.name}/own.pem")
    return folder.name


def place(transport: str, folder: str) -> tuple[bool, RpcSettings]:
    """Whether a transport is for one host, and its settings."""
    if transport != TLS:
        return TRANSPORTS[transport]
    own = f"{folder}/own.pem"
    return False, replace(TRANSPORTS["tcp"][1], tls=TlsSettings(f"{folder}/authority.pem", own, own))


def repeat(step: Callable[[], None], seconds: float) -> tuple[int, float]:
    """Run ``step`` for about ``seconds``; how often, and the exact time."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        count += 1
    return count, time.perf_counter() - start


@contextlib.contextmanager
def served(engine: str, transport: str) -> Iterator[tuple[subprocess.Popen[str], Endpoint, PeerAddress]]:
    """A server in a process of its own, and a client of it."""
    folder = certificates() if transport == TLS else ""
    use_unix, settings = place(transport, folder)
    process = other("--serve", engine, transport, folder)
    try:
        if process.stdout is None:
            raise RuntimeError("no pipe")
        address = PeerAddress(*json.loads(process.stdout.readline()))
        with Endpoint("client", 0, settings=replace(settings, engine=engine), use_unix=use_unix) as client:
            yield process, client, address
    finally:
        finish(process)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Another thread runs Python all the time."""
    over = threading.Event()

    def spin() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def bench_engine(engine: str, transport: str, seconds: float) -> list[Row]:
    """One way of connecting two endpoints."""
    name = f"{engine}, {transport}"
    with served(engine, transport) as (_, client, address):
        rows = [bench_round_trip(client, address, name, seconds), bench_small(client, address, name, seconds)]
        rows += [bench_answers(client, address, name, label, size, seconds) for label, size in SIZES.items()]
        rows.append(bench_idle(client, address, name, max(1.0, seconds)))
        with busy():
            rows.append(bench_round_trip(client, address, f"{name}, busy", seconds))
            rows.append(bench_answers(client, address, f"{name}, busy", "10 MB", SIZES["10 MB"], seconds))
    return rows


def bench_small(client: Endpoint, address: PeerAddress, name: str, seconds: float) -> Row:
    """Requests and answers of a number, several in flight."""
    futures = deque(client.request(address, "echo", 1) for _ in range(SMALL_IN_FLIGHT))

    def step() -> None:
        futures.append(client.request(address, "echo", 1))
        futures.popleft().result()

    count, elapsed = repeat(step, seconds)
    for future in futures:
        future.result()
    return Row(name, "small", per_s=count / elapsed)


def bench_idle(client: Endpoint, address: PeerAddress, name: str, seconds: float) -> Row:
    """CPU time of both processes while nothing is asked, in percent of one core."""
    start, cpu = time.perf_counter(), cpu_seconds() + client.call(address, "cpu")
    time.sleep(seconds)
    cpu = cpu_seconds() + client.call(address, "cpu") - cpu
    return Row(name, "-", idle_percent=100 * cpu / (time.perf_counter() - start))


def bench_losses(engine: str) -> list[Row]:
    """Seconds from a signal until all requests in flight have failed, or the server knows of its client's death."""
    rows = []
    for name, number in (("dead", signal.SIGKILL), ("frozen", signal.SIGSTOP)):
        with served(engine, "tcp") as (process, client, address):
            client.call(address, "cpu")
            futures = [client.request(address, "hang") for _ in range(IN_FLIGHT)]
            client.call(address, "cpu")
            start = time.perf_counter()
            process.send_signal(number)
            if wait(futures, timeout=DEADLINE_S).not_done:
                raise RuntimeError(f"a {name} server was not noticed within {DEADLINE_S:g} s")
            rows.append(Row(f"{engine}, {name} server", "-", noticed_s=time.perf_counter() - start))
            process.kill()
    with served(engine, "tcp") as (_, client, address):
        doomed = other("--connect", json.dumps([*vars(address).values()]))
        if doomed.stdout is None or doomed.stdout.readline() != "ready\n":
            raise RuntimeError("the client did not connect")
        future = client.request(address, "wait_for_loss")
        client.call(address, "cpu")
        start = time.monotonic()
        doomed.kill()
        rows.append(Row(f"{engine}, dead client", "-", noticed_s=future.result(DEADLINE_S) - start))
        finish(doomed)
    return rows


def bench_round_trip(client: Endpoint, address: PeerAddress, name: str, seconds: float) -> Row:
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
    return Row(name, "1 KB", p50_us=statistics.median(times) * 1e6)


def bench_answers(client: Endpoint, address: PeerAddress, name: str, label: str, size: int, seconds: float) -> Row:
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
    return Row(name, label, size * count / elapsed / 1e6, cpu / (size * count / 1e9))


@contextlib.contextmanager
def bare_pair(family: str, *command: str) -> Iterator[tuple[socket.socket, subprocess.Popen[str]]]:
    """A blocking socket to another process, which runs one of this program's commands."""
    with socket.socket(socket.AF_UNIX if family == "unix" else socket.AF_INET) as listener:
        listener.bind(f"\0gld-bench-{os.getpid()}-{'-'.join(command)}" if family == "unix" else ("127.0.0.1", 0))
        listener.listen()
        process = other(*command)
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
        yield sock, process


def bench_ping(family: str, seconds: float, *, hops: bool) -> Row:
    """1 KB there and back between blocking sockets; ``hops``: both sides are told of it by another thread."""
    with bare_pair(family, "--pong", family, "yes" if hops else "no") as (sock, process):
        data, came, times = bytearray(1024), os.eventfd(0), list[float]()

        def read() -> None:
            while receive(sock, memoryview(data)):
                os.eventfd_write(came, 1)

        def step() -> None:
            start = time.perf_counter()
            sock.sendall(data)
            if hops:
                os.eventfd_read(came)
            else:
                receive(sock, memoryview(data))
            times.append(time.perf_counter() - start)

        if hops:
            threading.Thread(target=read, daemon=True).start()
        repeat(step, seconds)
        sock.shutdown(socket.SHUT_RDWR)
    finish(process)
    threads = ", threads" if hops else ""
    return Row(f"blocking sockets, {family}{threads}", "1 KB", p50_us=statistics.median(times) * 1e6)


def bench_ceiling(family: str, label: str, size: int, seconds: float) -> Row:
    """Blocking sockets, preallocated buffers, nothing else."""
    with bare_pair(family, "--pump", family, str(size)) as (sock, process):
        view = memoryview(bytearray(size))

        def step() -> None:
            sock.send(b"x")
            receive(sock, view)

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
    parser.add_argument("--seconds", type=float, default=0.5, help="time of each measurement")
    parser.add_argument("--engines", nargs="+", choices=RPC_ENGINES, default=RPC_ENGINES)
    parser.add_argument("--transports", nargs="+", choices=TRANSPORTS, default=list(TRANSPORTS))
    parser.add_argument("--no-ceilings", action="store_true", help="leave out the ceilings and the losses")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--tls", action="store_true", help="TCP under TLS too")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--connect", help=argparse.SUPPRESS)
    parser.add_argument("--pump", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--pong", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    if options.connect:
        connect_and_hang(options.connect)
        return
    if options.pump:
        pump(options.pump[0], int(options.pump[1]))
        return
    if options.pong:
        pong(*options.pong)
        return
    rows: list[Row] = []
    for transport in options.transports:
        for engine in options.engines:
            rows += bench_engine(engine, transport, options.seconds)
    if options.tls:
        rows += bench_engine("python", TLS, options.seconds)
    if not options.no_ceilings:
        for engine in options.engines:
            rows += bench_losses(engine)
        rows += [bench_ping(family, options.seconds, hops=hops) for family in ("tcp", "unix") for hops in (False, True)]
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
    print(f"{'what':32}{'size':>8}" + "".join(f"{title:>12}" for title in COLUMNS.values()))
    for row in rows:
        values = ((getattr(row, column), DIGITS[column]) for column in COLUMNS)
        cells = ("-" if value is None else f"{value:.{digits}f}" for value, digits in values)
        print(f"{row.what:32}{row.size:>8}" + "".join(f"{cell:>12}" for cell in cells))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rows": [vars(row) for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
