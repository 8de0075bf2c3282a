"""Two hosts with an sshd each, in namespaces of their own, which end with the process that made them.

A host has its own network, host name, processes, ``/etc/hosts``, boot id and ``/dev/shm``, and shares the files. As on
Debian, its own name leads to its loopback. Between both is a pair of virtual network devices.
"""

from __future__ import annotations

import contextlib
import functools
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.hosts import DEADLINE_S, DEVICE, Host, connect, missing_for_hosts, own_files, wait_until

NAMES = ("node-a", "node-b")
_ADDRESSES = ("10.77.0.1", "10.77.0.2")


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
        self.a: Host
        self.b: Host
        with contextlib.ExitStack() as undo:
            self.a, self.b = (undo.enter_context(contextlib.closing(Host(name, self._setup(name)))) for name in NAMES)
            connect(self.a, self.b)
            for host, address in zip((self.a, self.b), _ADDRESSES, strict=True):
                host.run("ip", "address", "add", f"{address}/24", "dev", DEVICE)
            self.connect()
            self._undo = undo.pop_all()

    def connect(self) -> None:
        """Takes both devices up; returns when the hosts reach each other, which is a while later."""
        for host in (self.a, self.b):
            host.set_link("up")
        for host, peer in ((self.a, _ADDRESSES[1]), (self.b, _ADDRESSES[0])):
            wait_until(host, peer, 2222)

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
        (self.directory / "hosts").write_text("".join(f"{name}\n" for name in NAMES))

    def _setup(self, name: str) -> str:
        files = {"hosts": "/etc/hosts", "resolv": "/etc/resolv.conf"}
        return "\n".join(
            [
                *(f"mount --bind {self.directory}/{name}.{kind} {path}" for kind, path in files.items()),
                own_files(self.directory, name),
                "mkdir /run/sshd",
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


@functools.cache
def why_not() -> str:
    """Why no such hosts can be made here; nothing where they can."""
    if missing := missing_for_hosts("ssh", "ssh-keygen"):
        return missing
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
