"""Hosts on this machine: namespaces of their own, which end with the process that made them.

A host has its own network, host name, processes, boot id and ``/dev/shm``, and shares the files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 120.0  # only ever reached by a hang
DEVICE = "eth0"
NAMESPACES = ["--net", "--uts", "--mount", "--pid", "--ipc"]
# The first process of a host: it reaps orphans, as one does, and ends when nobody holds its standard input any more.
_INIT = """
import os, select, signal, subprocess, sys
signal.signal(signal.SIGCHLD, lambda *_: None)
wakeup, sender = os.pipe()
os.set_blocking(sender, False)
signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
subprocess.run(["sh", "-e", "-c", sys.argv[1]], check=True)
print("up", flush=True)
while True:
    ready, _, _ = select.select([0, wakeup], [], [])
    if 0 in ready and not os.read(0, 1):
        sys.exit()
    if wakeup in ready:
        os.read(wakeup, 4096)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""


class Host:
    """One host, until ``close``, or ``die``.

    Args:
        name: its name.
        setup: shell commands that its first process runs.
    """

    def __init__(self, name: str, setup: str) -> None:
        self.name = name
        self._namespace = 0  # of no process
        self._unshare = subprocess.Popen(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", _INIT, setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert self._unshare.stdout is not None
            assert self._unshare.stderr is not None
            if self._unshare.stdout.readline() != "up\n":
                raise RuntimeError(f"{name}: {self._unshare.stderr.read().strip()}")
            self.pid = _children(self._unshare.pid)[0]
            self._namespace = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        except BaseException:
            self.close()
            raise

    def command(self, *argv: str) -> list[str]:
        """A command line that runs another one on this host."""
        return ["nsenter", "--target", str(self.pid), *NAMESPACES, *argv]

    def run(self, *argv: str) -> str:
        """Runs a command on this host; what it wrote."""
        done = subprocess.run(self.command(*argv), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {shlex.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def set_link(self, state: str) -> None:
        """Takes its network device ``up`` or ``down``."""
        self.run("ip", "link", "set", DEVICE, state)

    def pids(self) -> list[int]:
        """Its processes but for the first, as this process sees them."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.pid:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                    is_here = os.stat(entry / "ns" / "pid").st_ino == self._namespace
                    if is_here and (entry / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                        found.append(int(entry.name))
        return sorted(found)

    def commands(self) -> dict[int, str]:
        """Command lines of the job's processes on this host: all that run this Python."""
        found = {}
        for pid in self.pids():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                if "python" in line.split(" ")[0]:
                    found[pid] = line
        return found

    def die(self) -> None:
        """Everything on it is gone at once, and nothing says so to the other: its network goes first."""
        self.set_link("down")
        self.close()

    def close(self) -> None:
        """Ends it, and returns when nothing of it runs, so that nothing writes into its files. Idempotent."""
        if self._unshare.poll() is None:
            self._unshare.kill()  # --kill-child: the host's first process goes with it, and all others with that
        self._unshare.wait(DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while left := self.pids():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name}: processes {left} outlive it")
            time.sleep(0.01)
        for stream in (self._unshare.stdin, self._unshare.stdout, self._unshare.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class HostNetwork:
    """Hosts whose network devices are ports of one bridge, which is a namespace of its own.

    Args:
        directory: for files that the hosts see in place of the machine's.
        count: of hosts.
        rate: of each link in either direction, as ``tc`` reads it (``"1gbit"``); None for no limit.
    """

    def __init__(self, directory: Path, count: int, rate: str | None = None) -> None:
        self.hosts: list[Host] = []
        with contextlib.ExitStack() as undo:
            self._switch = undo.enter_context(contextlib.closing(Host("switch", "ip link add br0 type bridge")))
            for number in range(count):
                name = f"host-{number}"
                host = undo.enter_context(contextlib.closing(Host(name, own_files(directory, name))))
                self.hosts.append(host)
                self._connect(number, rate)
            self._switch.run("ip", "link", "set", "br0", "up")
            self.wait_until_reachable()
            self._undo = undo.pop_all()

    def _connect(self, number: int, rate: str | None) -> None:
        host, port = self.hosts[number], f"port{number}"
        connect(self._switch, host, port)
        self._switch.run("ip", "link", "set", port, "master", "br0", "up")
        host.run("ip", "address", "add", f"{self.address(number)}/24", "dev", DEVICE)
        host.set_link("up")
        if rate is not None:
            for end, device in ((host, DEVICE), (self._switch, port)):
                limit = ["rate", rate, "burst", "512kb", "latency", "50ms"]
                end.run("tc", "qdisc", "add", "dev", device, "root", "tbf", *limit)

    @staticmethod
    def address(number: int) -> str:
        """Of a host, by its number."""
        return f"10.78.0.{1 + number}"

    def wait_until_reachable(self) -> None:
        """Returns when every host reaches the first, which is a while after its device was taken up."""
        for host in self.hosts[1:]:
            wait_until(host, self.address(0), 9, "refused")  # nobody listens there, which it says

    def sent_bytes(self, number: int) -> int:
        """What a host has sent to others, by its device's own count."""
        table = Path(f"/proc/{self.hosts[number].pid}/net/dev").read_text()
        line = next(line for line in table.splitlines() if line.strip().startswith(f"{DEVICE}:"))
        return int(line.partition(":")[2].split()[8])

    def close(self) -> None:
        """Ends all hosts. Idempotent."""
        self._undo.close()


def connect(one: Host, other: Host, device: str = DEVICE) -> None:
    """A pair of virtual network devices between two hosts; the other's has the name that hosts' devices have."""
    peer = ["peer", "name", DEVICE, "netns", str(other.pid)]
    # From outside, where the other's process has a number; the devices are in the hosts from the beginning.
    subprocess.run(
        ["nsenter", "--target", str(one.pid), "--net", "ip", "link", "add", device, "type", "veth", *peer],
        check=True,
        timeout=DEADLINE_S,
    )


def wait_until(host: Host, address: str, port: int, answer: str = "") -> None:
    """Knocks at a port until somebody opens, or until what comes has this word in it."""
    deadline = time.monotonic() + DEADLINE_S
    knock = host.command("timeout", "1", "bash", "-c", f"exec 3<>/dev/tcp/{address}/{port}")
    while True:
        done = subprocess.run(knock, capture_output=True, text=True, timeout=DEADLINE_S)
        if answer in done.stderr if answer else not done.returncode:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{host.name} does not reach {address}")
        time.sleep(0.05)


def own_files(directory: Path, name: str) -> str:
    """Shell commands by which a host gets a name, a boot id and memory of its own."""
    (directory / f"{name}.boot_id").write_text(f"{uuid.uuid4()}\n")
    return "\n".join(
        [
            f"hostname {name}",
            f"mount --bind {directory}/{name}.boot_id /proc/sys/kernel/random/boot_id",
            "mount -t tmpfs tmpfs /run",
            "mount -t tmpfs tmpfs /dev/shm",
            "ip link set lo up",
        ]
    )


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def missing_for_hosts(*tools: str) -> str:
    """What hosts need that this user or machine does not have; these tools, too."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    if missing := [tool for tool in ("unshare", "nsenter", "ip", *tools) if not shutil.which(tool)]:
        return f"hosts in namespaces need {', '.join(missing)}"
    return ""


@functools.cache
def why_no_hosts(*tools: str) -> str:
    """Why no hosts can be made here; nothing where they can."""
    if missing := missing_for_hosts(*tools):
        return missing
    try:
        with host_network(2):
            return ""
    except (RuntimeError, subprocess.SubprocessError) as error:
        return f"hosts in namespaces cannot be made: {error}"


@contextlib.contextmanager
def host_network(count: int, rate: str | None = None) -> Iterator[HostNetwork]:
    """So many hosts for the time of a ``with`` block."""
    with (
        tempfile.TemporaryDirectory(prefix="hosts-") as directory,
        contextlib.closing(HostNetwork(Path(directory), count, rate)) as network,
    ):
        yield network
