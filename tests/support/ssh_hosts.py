"""Two hosts with an sshd each, in namespaces of their own, which end with the process that made them.

A host has its own network, host name, processes, ``/etc/hosts``, boot id and ``/dev/shm``, and shares the files. As on
Debian, its own name leads to its loopback. Between both is a pair of virtual network devices.
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
NAMES = ("node-a", "node-b")
_ADDRESSES = ("10.77.0.1", "10.77.0.2")
_DEVICE = "eth0"
_NAMESPACES = ["--net", "--uts", "--mount", "--pid", "--ipc"]
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


class SshHost:
    """One host, until ``close``, or ``die``.

    Args:
        name: its name.
        setup: shell commands that its first process runs.
    """

    def __init__(self, name: str, setup: str) -> None:
        self.name = name
        self._unshare = subprocess.Popen(
            ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", _INIT, setup],
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
        except BaseException:
            self.close()
            raise

    def command(self, *argv: str) -> list[str]:
        """A command line that runs another one on this host."""
        return ["nsenter", "--target", str(self.pid), *_NAMESPACES, *argv]

    def run(self, *argv: str) -> str:
        """Runs a command on this host; what it wrote."""
        done = subprocess.run(self.command(*argv), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {shlex.join(argv)}: {done.stderr.strip()}")
        return done.stdout

    def set_link(self, state: str) -> None:
        """Takes its network device ``up`` or ``down``."""
        self.run("ip", "link", "set", _DEVICE, state)

    def pids(self) -> list[int]:
        """Its processes but for the first and its sshd that listens, as this process sees them."""
        try:
            own = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        except FileNotFoundError:
            return []
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != self.pid:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                    is_here = os.stat(entry / "ns" / "pid").st_ino == own
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
        """Ends it. Idempotent."""
        if self._unshare.poll() is None:
            self._unshare.kill()  # --kill-child: the host's first process goes with it, and all others with that
        self._unshare.wait(DEADLINE_S)
        for stream in (self._unshare.stdin, self._unshare.stdout, self._unshare.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class SshCluster:
    """Two hosts that reach each other by ssh, ``a`` and ``b``.

    Args:
        directory: for keys and settings.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)],
                check=True,
                timeout=DEADLINE_S,
                stdin=subprocess.DEVNULL,
            )
        self._write_settings()
        self.a: SshHost
        self.b: SshHost
        with contextlib.ExitStack() as undo:
            self.a, self.b = (
                undo.enter_context(contextlib.closing(SshHost(name, self._setup(name)))) for name in NAMES
            )
            peer = ["peer", "name", _DEVICE, "netns", str(self.b.pid)]
            # From outside, where the other's process has a number; the devices are in the hosts from the beginning.
            subprocess.run(
                ["nsenter", "--target", str(self.a.pid), "--net", "ip", "link", "add", _DEVICE, "type", "veth", *peer],
                check=True,
                timeout=DEADLINE_S,
            )
            for host, address in zip((self.a, self.b), _ADDRESSES, strict=True):
                host.run("ip", "address", "add", f"{address}/24", "dev", _DEVICE)
            self.connect()
            self._undo = undo.pop_all()

    def connect(self) -> None:
        """Takes both devices up; returns when the hosts reach each other, which is a while later."""
        for host in (self.a, self.b):
            host.set_link("up")
        deadline = time.monotonic() + DEADLINE_S
        for host, peer in ((self.a, _ADDRESSES[1]), (self.b, _ADDRESSES[0])):
            knock = host.command("timeout", "1", "bash", "-c", f"exec 3<>/dev/tcp/{peer}/2222")
            while subprocess.run(knock, capture_output=True, timeout=DEADLINE_S).returncode:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{host.name} does not reach {peer}")
                time.sleep(0.05)

    def _write_settings(self) -> None:
        user_key = self.directory / "user_key"
        (self.directory / "sshd_config").write_text(
            f"Port 2222\nHostKey {self.directory / 'host_key'}\nAuthorizedKeysFile {user_key}.pub\nPidFile none\n"
            "UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nUseDNS no\n"
        )
        (self.directory / "ssh_config").write_text(
            f"Host *\n  Port 2222\n  IdentityFile {user_key}\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n"
            f"  UserKnownHostsFile {self.directory / 'known_hosts'}\n  LogLevel ERROR\n"
        )
        for name in NAMES:
            known = [
                f"{'127.0.1.1' if other == name else where} {other}"
                for other, where in zip(NAMES, _ADDRESSES, strict=True)
            ]
            (self.directory / f"{name}.hosts").write_text("\n".join(["127.0.0.1 localhost", *known, ""]))
            (self.directory / f"{name}.resolv").write_text("")  # nobody is asked for names
            (self.directory / f"{name}.boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.directory / "hosts").write_text("".join(f"{name}\n" for name in NAMES))

    def _setup(self, name: str) -> str:
        files = {"hosts": "/etc/hosts", "resolv": "/etc/resolv.conf", "boot_id": "/proc/sys/kernel/random/boot_id"}
        return "\n".join(
            [
                f"hostname {name}",
                *(f"mount --bind {self.directory}/{name}.{kind} {path}" for kind, path in files.items()),
                "mount -t tmpfs tmpfs /run",
                "mount -t tmpfs tmpfs /dev/shm",
                "mkdir /run/sshd",
                "ip link set lo up",
                f"{_sshd()} -f {self.directory}/sshd_config -E {self.directory}/{name}.sshd.log",
            ]
        )

    @property
    def ssh(self) -> str:
        """The ssh command that reaches them."""
        return f"ssh -F {self.directory / 'ssh_config'}"

    @property
    def hosts_file(self) -> str:
        """The hosts file, ``node-a`` first."""
        return str(self.directory / "hosts")

    def close(self) -> None:
        """Ends both hosts."""
        self._undo.close()


def _sshd() -> str:
    return shutil.which("sshd") or "/usr/sbin/sshd"


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@functools.cache
def why_not() -> str:
    """Why no such hosts can be made here; nothing where they can."""
    if os.geteuid() != 0:
        return "hosts in namespaces need root"
    if missing := [tool for tool in ("unshare", "nsenter", "ip", "ssh", "ssh-keygen") if not shutil.which(tool)]:
        return f"hosts in namespaces need {', '.join(missing)}"
    if not Path(_sshd()).exists():
        return "hosts in namespaces need sshd"
    try:
        with ssh_cluster() as cluster:
            cluster.a.run(*shlex.split(cluster.ssh), NAMES[1], "true")
    except (RuntimeError, subprocess.SubprocessError) as error:
        return f"hosts in namespaces cannot be made: {error}"
    return ""


@contextlib.contextmanager
def ssh_cluster() -> Iterator[SshCluster]:
    """Two hosts for the time of a ``with`` block."""
    with tempfile.TemporaryDirectory(prefix="ssh-hosts-") as directory:
        cluster = SshCluster(Path(directory))
        try:
            yield cluster
        finally:
            cluster.close()
