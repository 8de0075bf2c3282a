"""The faults: what is done to a job, and how that has to end."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.hooks import HELD_S, HOLD, INJECTED, RAISE_AT
from tests.faults.link import Link
from tests.faults.proxy import Proxy
from tests.faults.workload import (
    FEATURE_MEMORY,
    MP,
    NUM_BATCHES,
    NUM_EPOCHS,
    NUM_SERVERS,
    NUM_TRAINERS,
    RECONNECT,
    SERVED,
)
from tests.support.control_groups import move, remove
from tests.support.jobs import children, parent_of, told_of, workers_of

BRIEF_S = 0.3, 1.5  # well below the heartbeat's patience
LONG_S = 4.0, 5.0  # beyond its 3 s
SERVER_EXIT_S = 3.0  # that the launcher waits for servers; one that was restarted waits for it, see docs/failures.md
BLOCK_DEVICES = Path("/sys/fs/cgroup/blkio")
_READS = "blkio.throttle.read_iops_device"
FORK_S = 10.0 + 2.0  # until an owner gives its fork server up, and before that the exit code that it should have told
RECONNECT_S = 4.0  # that loaders wait for a server which is gone for good
FROZEN_S = 5.0 + SERVER_EXIT_S  # until the launcher has killed a server that froze


@dataclass
class Scene:
    """A job that runs, at the moment of its fault.

    Attributes:
        rng: all that is left to chance.
        directory: of this job.
        go: lets the trainer go on that waits for the fault.
        ended: set when the job has ended.
        early: whether the trainer goes on before the fault comes, as near to it as can be.
        proxy: the network between its processes; None where they have their own.
        link: the one between two hosts, with a server and a trainer on each; None where all are on one.
    """

    rng: random.Random
    directory: Path
    go: Callable[[], None]
    ended: threading.Event
    early: bool
    proxy: Proxy | None = None
    link: Link | None = None
    did: str = ""  # in words, for the table

    def processes(self, *wanted: str) -> list[tuple[int, str]]:
        """Those of the job that are one of these now: ``server-0``, ``client-1`` (a trainer), ``worker``."""
        parents, names = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    before, _, after = (entry / "stat").read_text().rpartition(")")
                    names[int(entry.name)] = before.partition("(")[2]
                    parents[int(entry.name)] = int(after.split()[1])
        return sorted(
            (pid, name.removeprefix("gld-"))
            for pid, name in names.items()
            if name in [f"gld-{one}" for one in wanted] and os.getpid() in _ancestors(pid, parents)
        )

    def pick(self, *wanted: str) -> tuple[int, str]:
        """One of those, by chance, and what it is. It may end at any time, unless it waits for the fault."""
        found = self.processes(*wanted)
        if not found:
            raise LookupError(f"the job has no {' and no '.join(wanted)}")
        if self.early:
            self.go()
        return self.rng.choice(found)

    def pass_time(self, bounds: tuple[float, float]) -> None:
        """A time between these bounds, or until the job ends."""
        self.ended.wait(self.rng.uniform(*bounds))


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while (pid := parents.get(pid, 0)) > 0:
        yield pid


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: for the table.
        inject: does it; None where ``environ`` or ``disk_full`` does.
        modes: of jobs that it can befall.
        rule_s: seconds that the rules of deadlines allow for it, beyond what anything takes.
        error: a regular expression that the job's one error has to match; "" where the epochs have to be complete.
        may_complete: whether they may be complete in spite of ``error``.
        never: a regular expression of what the launcher must not say; "" where it may say anything.
        first_moment: -1 where it may come before loaders are opened.
        network: whether the job's processes talk through a proxy.
        linked: whether they lie on two hosts with a link between them.
        disk_full: whether the launcher's logs are on a disk that is full from the beginning.
    """

    name: str
    inject: Callable[[Scene], None] | None
    modes: tuple[str, ...] = (*SERVED, MP)
    rule_s: float = 0.0
    error: str = ""
    may_complete: bool = False
    never: str = ""
    first_moment: int = 0
    network: bool = False
    linked: bool = False
    disk_full: bool = False
    environ: Callable[[random.Random], dict[str, str]] = field(default=lambda rng: {})


def _server(scene: Scene) -> tuple[str, ...]:
    return (f"server-{scene.rng.randrange(NUM_SERVERS)}",)


def _trainer(scene: Scene) -> tuple[str, ...]:
    """Any: the one whose moment it is is there, the other may not have begun, or may end while it is looked for."""
    return tuple(f"client-{rank}" for rank in range(NUM_TRAINERS))


def _worker(scene: Scene) -> tuple[str, ...]:
    return ("worker",)


def _send(whom: Callable[[Scene], tuple[str, ...]], signum: int) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        pid, scene.did = scene.pick(*whom(scene))
        os.kill(pid, signum)

    return inject


def _kill_servers(scene: Scene) -> None:
    """Two of them, or one and then its successor: at once, within milliseconds, or while the first is coming back."""
    (first,), (second,) = _server(scene), _server(scene)
    pause_s = scene.rng.choice((0.0, scene.rng.uniform(0.0, 0.05), scene.rng.uniform(0.0, 4.0)))
    pid, _ = scene.pick(first)
    os.kill(pid, signal.SIGKILL)
    scene.did = f"{first}, {1e3 * pause_s:.0f} ms, {second}"
    scene.ended.wait(pause_s)
    for pid, _ in scene.processes(second):  # none where it is just coming back
        os.kill(pid, signal.SIGKILL)


def _freeze(whom: Callable[[Scene], tuple[str, ...]], bounds: tuple[float, float]) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        pid, scene.did = scene.pick(*whom(scene))
        os.kill(pid, signal.SIGSTOP)
        scene.go()
        scene.pass_time(bounds)
        with contextlib.suppress(ProcessLookupError):  # it was killed for it, which is right
            os.kill(pid, signal.SIGCONT)

    return inject


def _network(scene: Scene) -> Proxy:
    if scene.proxy is None:
        raise LookupError("the job's processes have their own network")
    if scene.early:
        scene.go()
    return scene.proxy


def _cut(scene: Scene) -> None:
    _network(scene).cut()


def _silence(bounds: tuple[float, float]) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        _network(scene).silence(silent=True)
        scene.go()
        scene.pass_time(bounds)
        _network(scene).silence(silent=False)

    return inject


def _slow(scene: Scene) -> None:
    delay_s = scene.rng.uniform(0.005, 0.05)
    scene.did = f"{1e3 * delay_s:.0f} ms a piece"
    _network(scene).slow_down(delay_s)
    scene.go()
    scene.pass_time((2.0, 3.0))
    _network(scene).slow_down(0.0)


def _garble(scene: Scene) -> None:
    _network(scene).garble(scene.rng)


def _link(scene: Scene) -> Link:
    if scene.link is None:
        raise LookupError("the job's processes lie on one host")
    if scene.early:
        scene.go()
    return scene.link


def _take_link_down(bounds: tuple[float, float]) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        link, number = _link(scene), scene.rng.randrange(2)
        scene.did = f"that of host {number}"
        link.set_up(number, is_up=False)
        scene.go()
        scene.pass_time(bounds)
        link.set_up(number, is_up=True)

    return inject


def _take_link_down_for_good(scene: Scene) -> None:
    _link(scene).set_up(scene.rng.randrange(2), is_up=False)


def _narrow_link(scene: Scene) -> None:
    link = _link(scene)
    link.limit(rate := scene.rng.choice(("500kbit", "2mbit", "10mbit")))
    scene.did = rate
    scene.go()
    scene.pass_time((2.0, 3.0))
    link.limit(None)


def _lose_fork_server(signum: int) -> Callable[[Scene], None]:
    """A process that workers are forked from gets the signal, and a worker dies: another has to be started."""

    def inject(scene: Scene) -> None:
        worker, _ = scene.pick("worker")
        os.kill(parent_of(worker), signum)
        os.kill(worker, signal.SIGKILL)

    return inject


def _no_memory(scene: Scene) -> None:
    """No process of one owner of workers can make a memory file any more, and then it needs one: a worker dies."""
    worker, _ = scene.pick("worker")
    owner = parent_of(parent_of(worker))
    scene.did = told_of(owner, "comm").strip().removeprefix("gld-")
    for pid in (owner, *children(owner), *workers_of(owner)):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
    os.kill(worker, signal.SIGKILL)


def _fill_shared_memory(scene: Scene) -> None:
    """Where the job has a /dev/shm of its own; see ``job``."""
    with open("/dev/shm/filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


def can_slow_disks() -> bool:
    """Whether this process may limit the reads of others."""
    return os.access(BLOCK_DEVICES, os.W_OK) and (BLOCK_DEVICES / _READS).exists()


def _slow_disk(scene: Scene) -> None:
    """Reads of the job's processes wait for their turn, a few in a second."""
    device = os.stat(scene.directory).st_dev
    group = BLOCK_DEVICES / f"gld-fault-{os.getpid()}"
    scene.did = f"{(reads := scene.rng.choice((1, 5, 20)))} reads a second"
    group.mkdir()
    try:
        (group / _READS).write_text(f"{os.major(device)}:{os.minor(device)} {reads}")
        processes = [*children(os.getpid())]
        for pid in processes:
            processes.extend(children(pid))
            move(pid, group)
        scene.go()
        scene.pass_time((2.0, 3.0))
    finally:
        remove(group)


def _raise_at(rng: random.Random) -> dict[str, str]:
    return {RAISE_AT: f"{rng.randrange(NUM_EPOCHS)}:{rng.randrange(NUM_BATCHES)}"}


def _waiting_briefly(_: random.Random) -> dict[str, str]:
    return {RECONNECT: str(RECONNECT_S)}


def _from_disk(_: random.Random) -> dict[str, str]:
    return {"GLD_FEATURE_MEMORY": FEATURE_MEMORY}


_GONE = rf"lost _default_server_\d .*; it was not back within (reconnect_timeout=)?{RECONNECT_S:g} s"
_KILLED = r"trainer \d was killed by SIGKILL"
# It may be a worker of another loader that is just starting which needs one first.
_NO_MEMORY = r"(could not be started again|stage set-up): .*(File too large|EFBIG)"

FAULTS = (
    Fault("kill a sampling worker", _send(_worker, signal.SIGKILL)),
    Fault("kill a server", _send(_server, signal.SIGKILL), SERVED, rule_s=SERVER_EXIT_S, first_moment=-1),
    Fault("kill servers twice", _kill_servers, SERVED, rule_s=2 * SERVER_EXIT_S, first_moment=-1),
    # the other trainer may be about to exit, with all its batches: the signal finds nothing to end then
    Fault(
        "kill a trainer", _send(_trainer, signal.SIGKILL), rule_s=5.0, error=_KILLED, may_complete=True, first_moment=-1
    ),
    Fault("freeze a worker briefly", _freeze(_worker, BRIEF_S), rule_s=1.5),
    Fault("freeze a worker for long", _freeze(_worker, LONG_S), rule_s=5.0),
    Fault("freeze a server briefly", _freeze(_server, BRIEF_S), SERVED, rule_s=1.5, first_moment=-1),
    Fault("freeze a server for long", _freeze(_server, LONG_S), SERVED, rule_s=FROZEN_S, first_moment=-1),
    Fault("freeze a server for good", _send(_server, signal.SIGSTOP), SERVED, rule_s=FROZEN_S, first_moment=-1),
    Fault("hold a worker's interpreter", _send(_worker, HOLD), rule_s=HELD_S),
    Fault("hold a server's interpreter", _send(_server, HOLD), SERVED, rule_s=HELD_S, never="froze", first_moment=-1),
    Fault("freeze a trainer briefly", _freeze(_trainer, BRIEF_S), rule_s=1.5, first_moment=-1),
    Fault("cut the network", _cut, SERVED, first_moment=-1, network=True),
    Fault("silent network, briefly", _silence(BRIEF_S), SERVED, rule_s=1.5, first_moment=-1, network=True),
    Fault("silent network, for long", _silence(LONG_S), SERVED, rule_s=8.0, first_moment=-1, network=True),
    Fault("slow network", _slow, SERVED, rule_s=3.0, first_moment=-1, network=True),
    Fault("corrupt frame", _garble, SERVED, first_moment=-1, network=True),
    Fault("link down, briefly", _take_link_down(BRIEF_S), SERVED, rule_s=1.5, first_moment=-1, linked=True),
    Fault("link down, for long", _take_link_down(LONG_S), SERVED, rule_s=8.0, first_moment=-1, linked=True),
    Fault(
        "link down, for good",
        _take_link_down_for_good,
        SERVED,
        rule_s=RECONNECT_S + 8.0 + SERVER_EXIT_S,
        error=_GONE,
        may_complete=True,
        first_moment=-1,
        linked=True,
        environ=_waiting_briefly,
    ),
    Fault("narrow link", _narrow_link, SERVED, rule_s=3.0, first_moment=-1, linked=True),
    Fault("full /dev/shm", _fill_shared_memory, first_moment=-1),
    Fault("no more memory files", _no_memory, error=_NO_MEMORY, may_complete=True),
    Fault("full disk", None, disk_full=True, first_moment=-1),
    Fault("slow disk", _slow_disk, rule_s=3.0, first_moment=-1, environ=_from_disk),
    Fault("kill a fork server", _lose_fork_server(signal.SIGKILL)),
    Fault("freeze a fork server", _lose_fork_server(signal.SIGSTOP), rule_s=FORK_S),
    Fault("exception in a worker", None, error=INJECTED, first_moment=-1, environ=_raise_at),
)
