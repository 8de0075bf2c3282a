"""One job with one fault, and whether it ended as it has to. Runs in a process of its own, made by ``run``."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from graphlearn_dist.cluster import LaunchPlan, launch
from graphlearn_dist.cluster.jobs.backend import LocalBackend
from graphlearn_dist.cluster.jobs.launcher import describe_exit
from graphlearn_dist.cluster.jobs.plan import Master
from graphlearn_dist.errors import LaunchError
from tests.faults import hooks
from tests.faults.kinds import FAULTS, SERVER_EXIT_S, Fault, Scene, can_slow_disks
from tests.faults.link import Link
from tests.faults.proxy import Proxy
from tests.faults.workload import FEATURE_MEMORY, NUM_SERVERS, NUM_TRAINERS, SERVED, Digests
from tests.support.jobs import children
from tests.support.processes import ROOT
from tests.support.warm import PATCH, STACKS, Nursery, start_warm

START_LIMIT_S = 90.0  # until the moment of the fault comes
_SMALL_DISK = "size=64k"
_CLONE_NEWNS = 0x20000
_MS_PRIVATE_RECURSIVE = 0x44000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Case:
    """What happens to a job, all of it drawn from a seed.

    Attributes:
        seed: of this case alone.
        fault: number in ``FAULTS``.
        mode: who samples.
        trainer: whose progress decides the moment.
        moment: how many batches it has by then.
        early: whether that trainer goes on before the fault comes, as near to it as can be.
    """

    seed: int
    fault: int
    mode: str
    trainer: int
    moment: int
    early: bool

    @classmethod
    def draw(cls, seed: int, fault: int) -> Case:
        """The case of a seed; ``fault`` is given, so that a few cases have many kinds."""
        rng = random.Random(seed)
        kind = FAULTS[fault]
        moment = rng.randrange(kind.first_moment, 24)
        return cls(seed, fault, rng.choice(kind.modes), rng.randrange(NUM_TRAINERS), moment, rng.random() < 0.5)


@dataclass
class Verdict:
    """How a case ended.

    Attributes:
        outcome: of the job, in words.
        seconds: from the fault to the end of the job.
        did: what the fault was, in words.
        problems: what is wrong with how the job ended.
        hang: why the job had to be stopped; "" where it ended.
        harness: what went wrong with the harness itself; "" where nothing did.
    """

    outcome: str
    seconds: float = 0.0
    did: str = ""
    problems: list[str] = field(default_factory=list)
    hang: str = ""
    harness: str = ""

    @property
    def kind(self) -> str:
        """``right``, ``wrong``, ``hang``, or ``harness error`` where nothing worse is known of the job."""
        if self.hang:
            return "hang"
        if self.problems:
            return "wrong"
        return "harness error" if self.harness else "right"

    def complaints(self) -> list[str]:
        """All that is not as it has to be, a line or more each."""
        found = [f"HANG: {self.hang}"] if self.hang else []
        found += [f"WRONG: {problem}" for problem in self.problems]
        return found + ([f"HARNESS ERROR: {self.harness}"] if self.harness else [])


class _Output:
    """What the launcher writes: lines of all processes; ``on_now`` is called at the moment of the fault."""

    def __init__(self, log: Any, on_now: Any) -> None:
        self.batches: dict[str, list[str]] = {str(rank): [] for rank in range(NUM_TRAINERS)}
        self.notes: list[str] = []  # of the launcher itself
        self._log = log
        self._on_now = on_now
        self._rest = ""

    def write(self, text: str) -> int:
        self._log.write(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if batch := re.fullmatch(r"\[trainer (\d)\] batch (\w+)", line):
                self.batches[batch[1]].append(batch[2])
            elif re.fullmatch(r"\[trainer \d\] now", line):
                self._on_now()
            elif line.startswith("[launcher] "):
                self.notes.append(line)
        return len(text)

    def flush(self) -> None:
        self._log.flush()


class _ProxiedBackend(LocalBackend):
    """The registry stands behind the proxy like everything else."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        with super().master(plan) as master:
            yield replace(master, port=self._proxy.open(lambda: (master.address, master.port)))


class _LinkedBackend(LocalBackend):
    """The registry lies on the first host."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        with super().master(plan) as master, self._link.listen(0) as server:
            host, port = server.getsockname()
            yield replace(master, address=host, port=port, fd=server.fileno())


class Harness:
    """Injects the fault at its moment, and ends a job that does not end."""

    def __init__(
        self, case: Case, directory: Path, grace_s: float, proxy: Proxy | None = None, link: Link | None = None
    ) -> None:
        self._case = case
        self._fault = FAULTS[case.fault]
        self._limit_s = self._fault.rule_s + grace_s
        self._now = threading.Event()
        self._ended = threading.Event()
        self._pipe = os.open(directory / "go", os.O_RDWR)
        self._gone = False
        self._thread = threading.Thread(target=self._run, name="fault")
        self.scene = Scene(random.Random(case.seed), directory, self._go, self._ended, case.early, proxy, link)
        self.began: float | None = None
        self.hang = ""  # why it stopped the job
        self.failure = ""  # what it could not do

    def on_now(self) -> None:
        self._now.set()

    def _go(self) -> None:
        if not self._gone:
            self._gone = True
            os.write(self._pipe, b"!")

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Around the job. In the main thread.

        The launcher heeds SIGTERM while there is a job. The one that is to stop a job may come when it has just ended,
        and must not end this process then, which has yet to judge it.
        """
        previous = signal.signal(signal.SIGTERM, self._on_term)
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._now.set()
            self._thread.join()
            os.close(self._pipe)
            signal.signal(signal.SIGTERM, previous)

    def _on_term(self, signum: int, _frame: object) -> None:
        if not self.hang:
            raise RuntimeError("the harness was sent SIGTERM")

    def _run(self) -> None:
        if not self._now.wait(START_LIMIT_S):
            self._stop_job(f"no trainer came to its moment within {START_LIMIT_S:g} s")
            return
        if self._ended.is_set():
            return
        self.began = time.monotonic()
        try:
            if self._fault.inject is not None:
                self._fault.inject(self.scene)
        except ProcessLookupError:
            self.scene.did += " (came too late)"
        except Exception as error:
            self.failure = f"the fault cannot be injected: {type(error).__name__}: {error}"
        self._go()
        left_s = self.began + self._limit_s - time.monotonic()
        if not self._ended.wait(max(0.0, left_s)):
            self._stop_job(f"it had not ended {self._limit_s:g} s after its fault")

    def _stop_job(self, why: str) -> None:
        self.hang = why
        servers = [f"server-{rank}" for rank in range(NUM_SERVERS)]
        trainers = [f"client-{rank}" for rank in range(NUM_TRAINERS)]
        for pid, _ in self.scene.processes("worker", *servers, *trainers):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, STACKS)
        if not self._ended.wait(1.0):  # they write
            os.kill(os.getpid(), signal.SIGTERM)  # the launcher's to stop the job


def has_private_mounts() -> bool:
    """Gives this process mounts of its own, with an empty /dev/shm; False where the system does not allow that."""
    if _libc.unshare(_CLONE_NEWNS) or _libc.mount(b"none", b"/", None, _MS_PRIVATE_RECURSIVE, None):
        return False
    _mount_small_disk("/dev/shm")
    return True


def _mount_small_disk(path: str) -> None:
    if _libc.mount(b"none", path.encode(), b"tmpfs", 0, _SMALL_DISK.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount a tmpfs at {path}")


def _plan(case: Case, graph: Path, directory: Path, proxies: list[int], link: Link | None) -> LaunchPlan:
    fault = FAULTS[case.fault]
    chance = random.Random(case.seed)
    env = {
        "GLD_SHARE_PARTITIONS": str(chance.randrange(2)),
        "GLD_FEATURE_MEMORY": FEATURE_MEMORY if chance.randrange(2) else "",
        "GLD_UNIX_SOCKETS": str(chance.randrange(2)),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "TMPDIR": str(directory / "tmp"),
        hooks.DIRECTORY: str(directory),
        PATCH: "tests.faults.hooks:install",
        **fault.environ(random.Random(case.seed)),
    }
    if proxies:
        env |= {hooks.PORTS: ",".join(map(str, proxies)), "GLD_SHARE_PARTITIONS": "0"}
    if link is not None:
        networks = ",".join(map(link.path, range(NUM_SERVERS)))
        env |= {hooks.NETWORKS: networks, "GLD_SHARE_PARTITIONS": "0", "GLD_UNIX_SOCKETS": "0"}
    remote = case.mode in SERVED
    (directory / "no_server.py").write_text("")  # a launch has servers; these end at once
    return LaunchPlan(
        script=str(ROOT / "tests/faults/trainer.py"),
        script_args=(case.mode, str(graph), str(case.trainer), str(case.moment)),
        data=str(graph / "halves"),
        num_servers=NUM_SERVERS if remote else 1,
        num_trainers=NUM_TRAINERS,
        server_script=None if remote else str(directory / "no_server.py"),
        log_dir=str(directory / "logs"),
        env=env,
        server_exit_s=SERVER_EXIT_S,
    )


def run_case(case: Case, graph: Path, directory: Path, expected: Digests, grace_s: float) -> Verdict:
    """Runs the job of a case; everything that it writes lies in ``directory``."""
    for name in ("tmp", "logs"):
        (directory / name).mkdir()
    os.mkfifo(directory / "go")
    has_mounts = has_private_mounts()
    faulthandler.register(STACKS)  # of all that are forked from here on, from their first moment
    nursery = Nursery()
    faulthandler.enable()
    start_warm(nursery)
    if FAULTS[case.fault].disk_full:
        if not has_mounts:
            return Verdict("not possible here: no mounts")
        _mount_small_disk(str(directory / "logs"))
        _fill(directory / "logs" / "filler")
    if FAULTS[case.fault].name == "full /dev/shm" and not has_mounts:
        return Verdict("not possible here: no mounts")
    if FAULTS[case.fault].name == "slow disk" and not can_slow_disks():
        return Verdict("not possible here: no control groups of block devices")
    before = _left(directory, nursery)
    with contextlib.ExitStack() as stack:
        proxy, link, ports = None, None, []
        if FAULTS[case.fault].network:
            proxy = Proxy()
            stack.callback(proxy.close)
            ports = [
                proxy.open(lambda rank=rank: hooks.server_address(directory, rank))  # type: ignore[misc]
                for rank in range(NUM_SERVERS)
            ]
        if FAULTS[case.fault].linked:
            try:
                link = stack.enter_context(contextlib.closing(Link()))
            except OSError as failure:
                return Verdict(f"not possible here: {failure}")
        harness = Harness(case, directory, grace_s, proxy, link)
        output = _Output(stack.enter_context((directory / "output.txt").open("w", buffering=1)), harness.on_now)
        backend = LocalBackend() if proxy is None else _ProxiedBackend(proxy)
        if link is not None:
            backend = _LinkedBackend(link)
        code, error = 0, ""
        with harness.scope():
            try:
                code = launch(_plan(case, graph, directory, ports, link), backend=backend, out=output)  # type: ignore[arg-type]
            except LaunchError as failure:
                error = str(failure)
    seconds = time.monotonic() - harness.began if harness.began is not None else 0.0
    if harness.hang or code:
        verdict = Verdict("stopped", problems=compare(output.batches, expected), hang=harness.hang)
    else:
        verdict = judge(FAULTS[case.fault], output.batches, expected, error, output.notes)
    verdict.harness = harness.failure or (f"the job {describe_exit(code)}" if code and not harness.hang else "")
    verdict.seconds, verdict.did = seconds, harness.scene.did
    after = _left(directory, nursery)
    verdict.problems += [f"left behind: {what}" for what in sorted(after - before)]
    (directory / "error.txt").write_text(error)
    nursery.close()
    return verdict


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def _left(directory: Path, nursery: Nursery) -> set[str]:
    """What a job may leave: processes, orphans of which come to this one; descriptors of the launcher's; files."""
    found = {f"process {pid}" for pid in children(os.getpid()) if pid != nursery.pid}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(f"descriptor of {os.readlink(f'/proc/self/fd/{name}')}")
    found |= {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if name != "filler"}
    return found | {str(path) for path in (directory / "tmp").rglob("*")}


def compare(batches: Digests, expected: Digests) -> list[str]:
    """What is wrong with the batches that were delivered, be they all or not."""
    problems = []
    for rank, wanted in expected.items():
        got = batches[rank]
        if got != wanted[: len(got)]:
            first = next(i for i, one in enumerate(got) if i >= len(wanted) or one != wanted[i])
            problems.append(f"trainer {rank}: batch {first} is not that of the local loader")
    return problems


def judge(fault: Fault, batches: Digests, expected: Digests, error: str, notes: Sequence[str] = ()) -> Verdict:
    """Whether every trainer has what it has to, or the job's one error names the cause; and what the launcher said."""
    problems = compare(batches, expected)
    problems += [f"it must not say: {note}" for note in notes if fault.never and re.search(fault.never, note)]
    complete = all(len(batches[rank]) == len(wanted) for rank, wanted in expected.items())
    if not error:
        if not complete:
            problems.append(f"it ended well without all batches: { ({r: len(b) for r, b in batches.items()}) }")
        if fault.error and not fault.may_complete:
            problems.append(f"it ended well; an error was expected: {fault.error}")
        return Verdict("same batches", problems=problems)
    if not fault.error:
        problems.append("it ended with an error, and should not have")
    elif not re.search(fault.error, error):
        problems.append(f"its error does not say {fault.error!r}")
    return Verdict("error: " + error.splitlines()[0], problems=problems)


def main(case: Case, graph: Path, directory: Path, expected: Digests, grace_s: float) -> None:
    """Runs a case and leaves its verdict in ``verdict.json``."""
    log = os.open(directory / "harness.txt", os.O_WRONLY | os.O_CREAT, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    verdict = run_case(case, graph, directory, expected, grace_s)
    save_verdict(verdict, directory)


def save_verdict(verdict: Verdict, directory: Path) -> None:
    """As ``verdict.json``, which is there whole or not at all."""
    path = directory / "verdict.json"
    path.with_suffix(".new").write_text(json.dumps(asdict(verdict)))
    path.with_suffix(".new").replace(path)
