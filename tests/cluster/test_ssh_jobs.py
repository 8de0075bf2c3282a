"""Jobs over ssh on two hosts, in namespaces of their own where this machine has them."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.hosts import DEADLINE_S, Host
from tests.support.processes import ROOT, freeze
from tests.support.ssh_hosts import SshCluster, ssh_cluster, why_not

# Says so when it runs, with a child in a session of its own, and ends at a signal only; it gives signs of life.
LINGER = """
import os, signal, subprocess, sys
sys.path.insert(0, {root!r})
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
if "GLD_PULSE_FD" in os.environ and os.environ["GLD_ROLE"] == "server":
    os.write(int(os.environ["GLD_PULSE_FD"]), b".")
print("lingering", os.environ.get("GLOO_SOCKET_IFNAME"), os.environ["GLD_MASTER_ADDR"], flush=True)
while True:
    signal.pause()
"""

# A server that gives signs of life for as long as it runs.
ALIVE = """
import os, time
print("alive", flush=True)
while True:
    os.write(int(os.environ["GLD_PULSE_FD"]), b".")
    time.sleep(0.2)
"""


class Launched:
    """A launcher on ``node-a``, with what it has printed."""

    def __init__(self, cluster: SshCluster, directory: Path, *options: str) -> None:
        command = [sys.executable, "-m", "graphlearn_dist", "launch", "--on", "ssh"]
        command += ["--ssh", cluster.ssh, "--hosts", cluster.hosts_file, "--heartbeat-timeout", "0", *options]
        # A background job of a shell starts with SIGINT ignored, and the launcher heeds that.
        go = ["env", "--default-signal", f"PYTHONPATH={ROOT}", "sh", "-c", 'cd "$0" && exec "$@"', str(directory)]
        self._process = subprocess.Popen(
            cluster.a.command(*go, *command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._new: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._new.put(line.rstrip("\n"))
        self._new.put("")  # the end

    def wait_for(self, pattern: str, count: int = 1) -> str:
        """The next line that matches, or the ``count``-th."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            line = self._new.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line, "it ended:\n" + "\n".join(self.lines)
            count -= re.search(pattern, line) is not None
            if not count:
                return line

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.kill(self._pid, signal.SIGINT)

    @property
    def _pid(self) -> int:
        """The launcher is nsenter's child."""
        [pid] = _children(self._process.pid)
        return pid

    def kill(self) -> None:
        """As the system does where memory runs out."""
        os.kill(self._pid, signal.SIGKILL)

    def freeze(self) -> None:
        """Ctrl-Z."""
        freeze(self._pid)

    def go_on(self) -> None:
        """After ``freeze``; nsenter has stopped with its child."""
        os.kill(self._pid, signal.SIGCONT)
        self._process.send_signal(signal.SIGCONT)

    def wait(self) -> int:
        """Its exit code, when all has been read."""
        code = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


Launch = Callable[..., Launched]


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshCluster]:
    if reason := why_not():
        pytest.skip(reason)
    with ssh_cluster() as cluster:
        yield cluster


@pytest.fixture
def launch(hosts: SshCluster, tmp_path: Path) -> Iterator[Launch]:
    """Starts a launcher; when a test is over both hosts are connected, and nothing of it runs on them."""
    (tmp_path / "linger.py").write_text(LINGER.format(root=str(ROOT)))
    started: list[Launched] = []

    def start(*options: str) -> Launched:
        started.append(Launched(hosts, tmp_path, *options))
        return started[-1]

    yield start
    hosts.connect()
    for launcher in started:
        launcher.close()
    for host in (hosts.a, hosts.b):
        for pid in host.commands():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def nothing_left(host: Host) -> None:
    """Returns when nothing of a job runs on a host any more."""
    deadline = time.monotonic() + DEADLINE_S
    while left := host.commands():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


LINGERING = ["--server-script", "linger.py", "--servers", "2", "--trainers", "2", "linger.py"]


def test_ctrl_c_ends_everything_and_all_hosts_confirm_it(hosts: SshCluster, launch: Launch) -> None:
    job = launch(*LINGERING)
    job.wait_for("lingering", 4)
    # Each host's own name leads to its loopback; what others reach it by, and gloo too, was found out.
    assert {line for line in job.lines if "lingering" in line} == {
        *(f"[server {rank}] lingering None 10.77.0.1" for rank in (0, 1)),
        *(f"[trainer {rank}] lingering eth0 10.77.0.1" for rank in (0, 1)),
    }
    shown = " ".join(hosts.b.commands().values())
    assert "--name server-1 " in shown
    assert "--name trainer-1 " in shown
    job.interrupt()
    assert job.wait() == 130
    assert not [line for line in job.lines if "did not confirm" in line]
    for host in (hosts.a, hosts.b):
        assert host.commands() == {}


def test_ctrl_c_while_a_link_is_down(hosts: SshCluster, launch: Launch) -> None:
    """The launcher says who did not confirm its end, and that one ends by itself, though its link stays down."""
    job = launch("--launcher-timeout", "5", *LINGERING)
    job.wait_for("lingering", 4)
    hosts.b.set_link("down")
    assert job.wait_for("silent for").startswith("[launcher] node-b: silent for")
    job.interrupt()
    assert job.wait() == 130
    [said] = [line for line in job.lines if "did not confirm" in line]
    assert said.startswith(
        "[launcher] node-b did not confirm the end of server 1, trainer 1; what is left there ends by"
    )
    assert hosts.a.commands() == {}
    nothing_left(hosts.b)


def test_a_link_that_is_back_in_time(hosts: SshCluster, launch: Launch, tmp_path: Path) -> None:
    """Nothing is lost, and every change is said, also in the launcher's log."""
    job = launch("--log-dir", "logs", *LINGERING)
    job.wait_for("lingering", 4)
    hosts.b.set_link("down")
    job.wait_for(r"node-b: silent for \d+ s \(server 1, trainer 1\)")
    hosts.b.set_link("up")
    job.wait_for(r"node-b: back after \d+ s")
    job.interrupt()
    assert job.wait() == 130
    assert not [line for line in job.lines if "lost" in line or "did not confirm" in line]
    log = (tmp_path / "logs" / "launcher.log").read_text()
    for text in ("server 1 on node-b is ready", "node-b: silent for", "node-b: back after"):
        assert text in log
    nothing_left(hosts.b)


def test_a_host_that_is_gone_is_named(hosts: SshCluster, launch: Launch) -> None:
    """Its trainer is lost with it; nobody waits for gloo's or the kernel's time-outs."""
    job = launch("--launcher-timeout", "5", *LINGERING)
    job.wait_for("lingering", 4)
    hosts.b.set_link("down")
    job.wait_for(r"node-b: lost, silent for \d+ s")
    assert job.wait() == 255
    assert [line for line in job.lines if re.match("graphlearn-dist: trainer 1 on node-b was lost", line)]
    assert hosts.a.commands() == {}
    nothing_left(hosts.b)


def test_a_server_is_started_again_when_its_host_is_back(hosts: SshCluster, launch: Launch) -> None:
    """It takes the place of the one before, which has not noticed that its connection is gone."""
    servers = ["--server-script", "linger.py", "--servers", "2", "linger.py"]
    job = launch("--launcher-timeout", "60", *servers)
    job.wait_for("lingering", 3)
    [wrapper] = [pid for pid, line in hosts.b.commands().items() if "--name server-1 " in line]
    # What becomes of an ssh connection on one side only: the launcher's side breaks, the other's hears nothing of it.
    hosts.b.set_link("down")
    [near] = [pid for pid, line in hosts.a.commands().items() if "--name server-1 " in line and "--link 0" in line]

    os.kill(near, signal.SIGTERM)
    job.wait_for("server 1 was lost: its connection broke; starting it again")
    job.wait_for("node-b cannot be reached for server 1; trying it again")
    hosts.b.set_link("up")
    job.wait_for("lingering")
    assert Path(f"/proc/{wrapper}").exists() is False
    job.interrupt()
    assert job.wait() == 130
    assert not [line for line in job.lines if "did not confirm" in line]
    nothing_left(hosts.b)


def test_a_frozen_server_is_started_again(hosts: SshCluster, launch: Launch, tmp_path: Path) -> None:
    """On its own host somebody notices, kills it and says so."""
    (tmp_path / "alive.py").write_text(ALIVE)
    servers = ["--server-script", "alive.py", "--servers", "2", "linger.py"]
    job = launch("--heartbeat-timeout", "3", *servers)
    job.wait_for("server 1 on node-b is ready")
    [wrapper] = [pid for pid, line in hosts.b.commands().items() if "--name server-1 " in line]
    [server] = _children(wrapper)
    freeze(server)
    job.wait_for("server 1 froze and was killed; starting it again")
    job.wait_for("server 1 on node-b is ready")
    assert not Path(f"/proc/{server}").exists()
    job.interrupt()
    assert job.wait() == 130
    nothing_left(hosts.b)


def test_a_killed_launcher_takes_its_job_with_it(hosts: SshCluster, launch: Launch) -> None:
    """What it started here sees its end, and so the other host does: nobody waits for the launcher's time-out."""
    job = launch("--launcher-timeout", "0", *LINGERING)
    job.wait_for("lingering", 4)
    job.kill()
    for host in (hosts.a, hosts.b):
        nothing_left(host)


def test_a_stopped_launcher_keeps_its_job(hosts: SshCluster, launch: Launch) -> None:
    """Ctrl-Z is no death: what gives the signs of life is not the launcher itself."""
    job = launch("--launcher-timeout", "3", *LINGERING)
    job.wait_for("lingering", 4)
    before = hosts.b.commands()
    job.freeze()
    deadline = time.monotonic() + 6
    while time.monotonic() < deadline:  # nothing is waited for: that nothing ends is what has to be seen
        assert hosts.b.commands().keys() == before.keys()
        time.sleep(0.1)

    job.go_on()
    job.interrupt()
    assert job.wait() == 130


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Two partitions, as far as the launcher's checks look."""
    for name in ("part0", "part1"):
        (tmp_path / "data" / name).mkdir(parents=True)
    (tmp_path / "data" / "META.json").write_text('{"num_parts": 2}')
    return tmp_path / "data"


@contextlib.contextmanager
def listening(host: Host, port: int) -> Iterator[None]:
    """Somebody listens at a port of a host in the block."""
    code = f"import socket, sys; s = socket.create_server(('', {port})); print('up', flush=True); sys.stdin.read()"
    command = host.command(sys.executable, "-c", code)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield


def test_what_is_missing_is_said_before_anything_starts(hosts: SshCluster, launch: Launch, parts: Path) -> None:
    (parts / "part1").rmdir()
    with listening(hosts.a, 29400):
        job = launch("--data", str(parts), "--servers", "2", "--trainers", "2", "nowhere.py", "--port", "1")
        assert job.wait() == 1
    errors = [line.removeprefix("graphlearn-dist: ") for line in job.lines]
    assert errors == [
        "--port stands after nowhere.py and is the script's; the launcher's options stand before it",
        "script: expected a file on node-a, got 'nowhere.py': there is none",
        "port: 29400 on node-a, for the registry, is taken; choose another one with --port",
        "script: expected a file on node-b, got 'nowhere.py': there is none",
        f"data: server 1 on node-b needs part1 of {parts}; it has part0",
    ]


def test_a_number_of_servers_that_does_not_fit(launch: Launch, parts: Path) -> None:
    job = launch("--data", str(parts), "--servers", "1", "linger.py")
    assert job.wait() == 1
    assert job.lines == [
        f"graphlearn-dist: num_servers: expected 2, one for each partition of {parts}, got --servers 1"
    ]
