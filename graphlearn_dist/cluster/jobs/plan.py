"""What a launch consists of: pure values, computed before anything is started."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...config import DEFAULT_SSH, PULSE_INTERVAL_S, SILENCE_S, LaunchContext, port_range_environ
from ...errors import InvalidArgumentError
from ...utils.paths import to_path

DEFAULT_PORT = 29400
_PORTS_OF_JOB = ("registry", "torch")  # the first ones of a range


@dataclass(frozen=True)
class Host:
    """A machine, and how many processes of a role it takes in each turn."""

    name: str
    slots: int = 1

    def __post_init__(self) -> None:
        if not self.name or self.name.startswith("-") or any(char.isspace() for char in self.name):
            raise InvalidArgumentError(f"name: expected a host name, got {self.name!r}")
        if self.slots < 1:
            raise InvalidArgumentError(f"slots: expected at least 1 for host {self.name}, got {self.slots}")


@dataclass(frozen=True)
class LaunchPlan:
    """A job: servers that sample, and trainers that run the user's script.

    Attributes:
        script: Python file that each trainer runs, or a module.
        script_args: its arguments.
        is_module: the script is the name of a module, as of ``python -m``.
        data: partition directory for ``graphlearn-dist serve``; needed unless there is a ``server_script``.
        num_servers: servers to start.
        num_trainers: trainers to start.
        backend: ``"local"``, ``"ssh"`` or ``"ray"``.
        hosts: machines for ``ssh``; servers go one to each in turn, trainers likewise.
        ssh: the ssh command with its options.
        port: port of the registry on the first host (``ssh``); the next one is torch's ``MASTER_PORT``. None: the first
            one of ``port_range``, else 29400. Locally both are chosen freely.
        port_range: first and last port that servers and trainers listen on, those two among them; None for any. A
            host needs as many as it has processes, the first one two more.
        log_dir: where each process's output goes as well, as ``server-0.log`` and so on, and what the launcher says, as
            ``launcher.log``. Logs of an earlier job there are kept, as ``server-0.log.1`` and so on.
        job_file: file that leads to the job while it runs, for ``graphlearn-dist status`` and ``top``; it has the job's
            secret, and only its owner can read it.
        server_script: Python file to run as a server instead of ``graphlearn-dist serve``.
        env: variables for every process, above the launcher's own.
        trainer_gpus: GPUs that Ray gives each trainer, or a fraction of one; elsewhere trainers see all of them.
        max_restarts: how often each server that a signal kills (or that freezes, or whose connection breaks, or whose
            machine is lost) is started again within an hour, with its rank and partition. One that ends with an exit
            code of its own is not.
        heartbeat_timeout_s: a server that gives no sign of life for so long has frozen, and is killed; 0: never.
        interpreter_timeout_s: so does one that lives, and whose interpreter runs nothing for so long; 0: never.
        launcher_timeout_s: over ssh, what was started on a host ends by itself when it had no sign of life from the
            launcher for so long, and counts as lost when the launcher had none from it; 0: never.
        server_exit_s: how long servers may take to end by themselves when all trainers have ended.
        stop_s: time between SIGTERM and SIGKILL.
    """

    script: str
    script_args: Sequence[str] = ()
    is_module: bool = False
    data: str | None = None
    num_servers: int = 1
    num_trainers: int = 1
    backend: str = "local"
    hosts: Sequence[Host] = ()
    ssh: str = DEFAULT_SSH
    port: int | None = None
    port_range: tuple[int, int] | None = None
    log_dir: str | None = None
    job_file: str | None = None
    server_script: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    trainer_gpus: float = 0.0
    max_restarts: int = 3
    heartbeat_timeout_s: float = 3.0
    interpreter_timeout_s: float = 30.0
    launcher_timeout_s: float = 30.0
    server_exit_s: float = 10.0
    stop_s: float = 5.0

    def __post_init__(self) -> None:
        if isinstance(self.script_args, str):
            raise InvalidArgumentError(f"script_args: expected a sequence of texts, got {self.script_args!r}")
        for name in ("num_servers", "num_trainers"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_restarts < 0:
            raise InvalidArgumentError(f"max_restarts: expected at least 0, got {self.max_restarts}")
        for name in ("heartbeat_timeout_s", "interpreter_timeout_s"):
            if not ((limit_s := getattr(self, name)) == 0 or limit_s > PULSE_INTERVAL_S):
                between = f"the {PULSE_INTERVAL_S:g} s between two signs of life"
                raise InvalidArgumentError(f"{name}: expected 0, or more than {between}, got {limit_s}")
        for name in ("server_exit_s", "stop_s", "trainer_gpus"):
            if not getattr(self, name) >= 0:
                raise InvalidArgumentError(f"{name}: expected at least 0, got {getattr(self, name)}")
        if not (self.launcher_timeout_s == 0 or self.launcher_timeout_s >= SILENCE_S):
            raise InvalidArgumentError(
                f"launcher_timeout_s: expected 0, or at least {SILENCE_S:g}, got {self.launcher_timeout_s}"
            )
        if self.port_range is not None and not 1 <= self.port_range[0] < self.port_range[1] <= 65535:
            raise InvalidArgumentError(f"port_range: expected two ports, the lower one first, got {self.port_range}")
        if self.port_range is not None and self.port is not None:
            raise InvalidArgumentError(f"port: expected None with a port_range, which has it, got {self.port}")
        if not 1 <= self.registry_port < 65535:
            raise InvalidArgumentError(f"port: expected between 1 and 65534, got {self.port}")
        if self.data is None and self.server_script is None:
            raise InvalidArgumentError("data: expected a partition directory (or a server_script), got None")
        if self.backend == "ssh" and not self.hosts:
            raise InvalidArgumentError(
                "hosts: expected at least one host for ssh (a file, or a Slurm allocation), got none"
            )

    @property
    def registry_port(self) -> int:
        """The registry's port on the first host, over ssh."""
        if self.port is not None:
            return self.port
        return self.port_range[0] if self.port_range is not None else DEFAULT_PORT

    def placement_hosts(self) -> list[str]:
        """Hosts in the order in which they are given processes, each repeated by its slots."""
        if self.backend != "ssh":
            return ["localhost"]
        return [host.name for host in self.hosts for _ in range(host.slots)]

    def placement(self) -> JobPlacement:
        """Servers on the hosts in turn, and trainers likewise."""
        hosts = self.placement_hosts()
        servers = [hosts[rank % len(hosts)] for rank in range(self.num_servers)]
        trainers = [hosts[rank % len(hosts)] for rank in range(self.num_trainers)]
        self._check_ports([*servers, *trainers])
        return JobPlacement(servers, trainers)

    def _check_ports(self, hosts_of_processes: Sequence[str]) -> None:
        if self.port_range is None:
            return
        room = self.port_range[1] - self.port_range[0] + 1
        for host, needed in Counter(hosts_of_processes).items():
            needed += len(_PORTS_OF_JOB)
            if room < needed:
                raise InvalidArgumentError(f"port_range: expected {needed} ports, for what runs on {host}, got {room}")


@dataclass(frozen=True)
class JobPlacement:
    """A machine for each process of a job, by rank."""

    server_hosts: Sequence[str]
    trainer_hosts: Sequence[str]


@dataclass(frozen=True)
class Master:
    """Where the registry listens, and where torch's own rendezvous does.

    Attributes:
        address: host that every process can reach.
        port: port of the registry.
        torch_port: port for torch's ``MASTER_PORT``.
        fd: a listening socket of this process for ``port``, to be inherited by server 0, or -1.
        torch_address: host of trainer 0, where it is not ``address``.
        has_registry: the registry runs already, and server 0 does not host it.
    """

    address: str
    port: int
    torch_port: int
    fd: int = -1
    torch_address: str = ""
    has_registry: bool = False


@dataclass(frozen=True)
class ProcessSpec:
    """One process to be started.

    Attributes:
        role: ``"server"`` or ``"trainer"``.
        rank: rank within the role.
        host: where it runs.
        command: what it runs.
        env: variables it gets beyond the launcher's.
        inherited_fd: a socket that it inherits, or -1.
        share_cores: trainers on its host, which share the cores; 0 leaves ``OMP_NUM_THREADS`` alone.
        stop_s: time between SIGTERM and SIGKILL.
        heartbeat_timeout_s: silence after which it has frozen, once it has given signs of life; 0: never.
        interpreter_timeout_s: the same of its interpreter.
    """

    role: str
    rank: int
    host: str
    command: Sequence[str]
    env: Mapping[str, str]
    inherited_fd: int = -1
    share_cores: int = 0
    stop_s: float = 5.0
    heartbeat_timeout_s: float = 0.0
    interpreter_timeout_s: float = 0.0
    launcher_timeout_s: float = 0.0

    @property
    def name(self) -> str:
        """Such as ``server 0``."""
        return f"{self.role} {self.rank}"


def read_hosts(path: str | Path) -> list[Host]:
    """Hosts of a file: one to a line, optionally followed by ``slots=N``; ``#`` starts a comment.

    Raises:
        InvalidArgumentError: the file cannot be read, a line is not of that form, or there is no host.
    """
    file = to_path("path", path)
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidArgumentError(f"hosts: cannot read {path}: {reason}") from error
    hosts = []
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        name, options = words[0], words[1:]
        if len(options) > 1 or not all(o.startswith("slots=") and o[6:].isdecimal() for o in options):
            raise InvalidArgumentError(f"hosts: {path}:{number}: expected 'HOST [slots=N]', got {line.strip()!r}")
        hosts.append(Host(name, int(options[0][6:]) if options else 1))
    if not hosts:
        raise InvalidArgumentError(f"hosts: {path} names no host")
    return hosts


def plan_processes(plan: LaunchPlan, master: Master, placement: JobPlacement | None = None) -> list[ProcessSpec]:
    """Every process of the job, servers first, each with its place, command and environment."""
    placement = placement or plan.placement()
    servers = [_server(plan, master, rank, host) for rank, host in enumerate(placement.server_hosts)]
    trainers = [_trainer(plan, master, rank, placement.trainer_hosts) for rank in range(plan.num_trainers)]
    return servers + trainers


def _server(plan: LaunchPlan, master: Master, rank: int, host: str) -> ProcessSpec:
    if plan.server_script is not None:
        command = [sys.executable, plan.server_script]
    else:
        serve = [sys.executable, "-m", "graphlearn_dist", "serve"]
        command = [*serve, "--rank", str(rank), "--data", os.path.abspath(str(plan.data))]  # what ps shows
    fd = master.fd if rank == 0 else -1
    env = _environ(plan, master, "server", rank, fd)
    return ProcessSpec(
        "server",
        rank,
        host,
        command,
        env,
        inherited_fd=fd,
        stop_s=plan.stop_s,
        heartbeat_timeout_s=plan.heartbeat_timeout_s,
        interpreter_timeout_s=plan.interpreter_timeout_s,
        launcher_timeout_s=plan.launcher_timeout_s,
    )


def _trainer(plan: LaunchPlan, master: Master, rank: int, hosts: Sequence[str]) -> ProcessSpec:
    host = hosts[rank]
    env = _environ(plan, master, "client", rank, -1) | {
        "RANK": str(rank),
        "WORLD_SIZE": str(plan.num_trainers),
        "LOCAL_RANK": str(hosts[:rank].count(host)),
        "LOCAL_WORLD_SIZE": str(hosts.count(host)),
        "MASTER_ADDR": master.torch_address or master.address,
        "MASTER_PORT": str(master.torch_port),
    }
    command = [sys.executable, *(["-m"] if plan.is_module else []), plan.script, *plan.script_args]
    return ProcessSpec(
        "trainer",
        rank,
        host,
        command,
        env | dict(plan.env),
        share_cores=hosts.count(host),
        stop_s=plan.stop_s,
        launcher_timeout_s=plan.launcher_timeout_s,
    )


def _environ(plan: LaunchPlan, master: Master, role: str, rank: int, fd: int) -> dict[str, str]:
    context = LaunchContext(
        role=role,
        rank=rank,
        num_servers=plan.num_servers,
        num_clients=plan.num_trainers,
        master_addr=master.address,
        master_port=master.port,
        master_fd=fd,
        launcher_has_registry=master.has_registry,
    )
    ports = {}
    if plan.port_range is not None:
        ports = port_range_environ(plan.port_range[0] + len(_PORTS_OF_JOB), plan.port_range[1])
    return {"PYTHONUNBUFFERED": "1", **ports, **plan.env, **context.to_environ()}
