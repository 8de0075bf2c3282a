"""Settings as frozen values. Environment variables are read here and nowhere else."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import InvalidArgumentError
from .utils.message_types import register_message

_log = logging.getLogger(__name__)

MIB = 1 << 20
DEFAULT_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
SILENCE_S = 3.0  # without a sign of life of a host, over ssh, after which the launcher says so
_MOST_TOKEN_BYTES = 4096  # what any pipe takes before anybody reads it
PULSE_INTERVAL_S = 1.0  # of the signs of life that a watched process gives


def _integer(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidArgumentError(f"environment variable {name}: expected an integer, got {text!r}") from None


def slurm_nodelist(environ: Mapping[str, str] = os.environ) -> str | None:
    """The hosts of the Slurm allocation that this process is in, as Slurm writes them; None outside of one."""
    return environ.get("SLURM_JOB_NODELIST") or None


def slurm_step_tasks(environ: Mapping[str, str] = os.environ) -> int:
    """How many processes ``srun`` has started of which this is one; 1 where it was not ``srun``."""
    return _integer(environ, "SLURM_STEP_NUM_TASKS", 1)


def num_restarts(environ: Mapping[str, str] = os.environ) -> int:
    """How often the launcher has started this process again."""
    return _integer(environ, "GLD_RESTARTS", 0)


def restarts_environ(count: int) -> dict[str, str]:
    """The variable that ``num_restarts`` reads back."""
    return {"GLD_RESTARTS": str(count)}


@dataclass(frozen=True)
class LaunchContext:
    """What the launcher tells a process it started, through the environment.

    Attributes:
        role: ``"server"`` or ``"client"``.
        rank: rank within the role, from 0.
        num_servers: servers in the job.
        num_clients: clients in the job.
        master_addr: host of the registry.
        master_port: port of the registry.
        master_fd: an already bound socket of the registry inherited by server 0, or -1.
        launcher_has_registry: the launcher hosts the registry, and not server 0.
    """

    role: str
    rank: int
    num_servers: int
    num_clients: int
    master_addr: str
    master_port: int
    master_fd: int = -1
    launcher_has_registry: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> LaunchContext:
        """Read the context; raises ``InvalidArgumentError`` where the process was not started by the launcher."""
        if "GLD_ROLE" not in environ:
            raise InvalidArgumentError(
                "GLD_ROLE is not set: this process was not started by `graphlearn-dist launch`; "
                "start it that way, or pass ranks and addresses to init_server/init_client yourself"
            )
        return cls(
            role=environ["GLD_ROLE"],
            rank=_integer(environ, "GLD_RANK", 0),
            num_servers=_integer(environ, "GLD_NUM_SERVERS", 1),
            num_clients=_integer(environ, "GLD_NUM_CLIENTS", 1),
            master_addr=environ.get("GLD_MASTER_ADDR", "127.0.0.1"),
            master_port=_integer(environ, "GLD_MASTER_PORT", 0),
            master_fd=_integer(environ, "GLD_MASTER_FD", -1),
            launcher_has_registry=bool(_integer(environ, "GLD_LAUNCHER_HAS_REGISTRY", 0)),
        )

    @classmethod
    def of_server(cls, rank: int, environ: Mapping[str, str] = os.environ) -> LaunchContext | None:
        """What the launcher says of the server of this rank; None where none started it in this process."""
        if environ.get("GLD_ROLE") != "server":
            return None
        context = cls.from_environ(environ)
        return context if context.rank == rank else None

    def to_environ(self) -> dict[str, str]:
        """The variables that ``from_environ`` reads back."""
        return {
            "GLD_ROLE": self.role,
            "GLD_RANK": str(self.rank),
            "GLD_NUM_SERVERS": str(self.num_servers),
            "GLD_NUM_CLIENTS": str(self.num_clients),
            "GLD_MASTER_ADDR": self.master_addr,
            "GLD_MASTER_PORT": str(self.master_port),
            "GLD_MASTER_FD": str(self.master_fd),
            "GLD_LAUNCHER_HAS_REGISTRY": str(int(self.launcher_has_registry)),
        }


@dataclass(frozen=True)
class CommunicationSettings:
    """What a worker of a group is told of how the group's ranks talk to each other.

    Attributes:
        backend: torch's: ``"gloo"`` or ``"nccl"``.
        gradient_compression: see ``cluster.compression``; None for none.
    """

    backend: str
    gradient_compression: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> CommunicationSettings:
        """Read the settings; raises ``InvalidArgumentError`` where this process is no worker of a group."""
        if "GLD_COMMUNICATION_BACKEND" not in environ:
            raise InvalidArgumentError("GLD_COMMUNICATION_BACKEND is not set: this process is no worker of a group")
        return cls(environ["GLD_COMMUNICATION_BACKEND"], environ.get("GLD_GRADIENT_COMPRESSION") or None)

    def to_environ(self) -> dict[str, str]:
        """The variables that ``from_environ`` reads back."""
        return {
            "GLD_COMMUNICATION_BACKEND": self.backend,
            "GLD_GRADIENT_COMPRESSION": self.gradient_compression or "",
        }


@register_message
@dataclass(frozen=True)
class TlsSettings:
    """Certificates for connections between hosts. All are paths of PEM files.

    Attributes:
        authority: certificates of the authority; a peer's must be signed by one of them.
        certificate: this process's own, which a process that listens needs; None for one that only connects.
        key: its private key.
        require_certificate: who connects must show a certificate of the authority's too.
        check_host: a certificate must be made out for the name or address that was dialled.
    """

    authority: str
    certificate: str | None = None
    key: str | None = None
    require_certificate: bool = False
    check_host: bool = True

    def __post_init__(self) -> None:
        if not self.authority:
            raise InvalidArgumentError("tls: expected the path of the authority's certificates, got ''")
        if (self.certificate is None) != (self.key is None):
            raise InvalidArgumentError(
                f"tls: expected certificate and key, or neither, got {self.certificate!r} and {self.key!r}"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] = os.environ) -> TlsSettings | None:
        """What the variables named ``GLD_TLS_…`` say; None where none of them is set."""
        if not any(environ.get(name) for name in TLS_VARIABLES):
            return None
        return cls(
            environ.get("GLD_TLS_AUTHORITY", ""),
            environ.get("GLD_TLS_CERTIFICATE") or None,
            environ.get("GLD_TLS_KEY") or None,
            require_certificate=_integer(environ, "GLD_TLS_REQUIRE_CERTIFICATE", 0) != 0,
            check_host=_integer(environ, "GLD_TLS_CHECK_HOST", 1) != 0,
        )


TLS_VARIABLES = (
    "GLD_TLS_AUTHORITY",
    "GLD_TLS_CERTIFICATE",
    "GLD_TLS_KEY",
    "GLD_TLS_REQUIRE_CERTIFICATE",
    "GLD_TLS_CHECK_HOST",
)


@dataclass(frozen=True)
class RpcSettings:
    """How an endpoint behaves. All times are seconds, all sizes bytes.

    ``engine`` moves the frames: ``"native"`` or ``"python"``; None: what ``GLD_RPC_ENGINE`` says, else the native one.
    ``tls`` protects connections over TCP, on the engine in Python; None: what ``GLD_TLS_…`` says, else there is none.
    A peer that is silent for ``heartbeat_interval_s`` is asked whether it lives, and given up after
    ``heartbeat_timeout_s``: ``GLD_HEARTBEAT_TIMEOUT``, else 3, and a third of it unless given.
    """

    connect_timeout_s: float = 30.0
    request_timeout_s: float = 180.0
    heartbeat_interval_s: float = field(default_factory=lambda: heartbeat_timeout_s() / 3)
    heartbeat_timeout_s: float = field(default_factory=lambda: heartbeat_timeout_s())
    max_payload_bytes: int = 4 << 30
    max_inflight: int = 64
    arena_bytes: int = 256 * MIB
    arena_threshold_bytes: int = 16 << 10
    num_threads: int = 2
    engine: str | None = None
    tls: TlsSettings | None = None

    def __post_init__(self) -> None:
        for name in ("connect_timeout_s", "request_timeout_s", "heartbeat_interval_s", "heartbeat_timeout_s"):
            if getattr(self, name) <= 0:
                raise InvalidArgumentError(f"{name}: expected a positive number of seconds, got {getattr(self, name)}")
        if self.heartbeat_timeout_s <= self.heartbeat_interval_s:
            raise InvalidArgumentError(
                f"heartbeat_timeout_s: expected more than heartbeat_interval_s={self.heartbeat_interval_s}, "
                f"got {self.heartbeat_timeout_s}"
            )
        for name in ("max_payload_bytes", "max_inflight", "num_threads"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.engine not in (None, *RPC_ENGINES):
            raise InvalidArgumentError(f"engine: expected one of {RPC_ENGINES} or None, got {self.engine!r}")
        if self.tls is not None and self.engine == "native":
            raise InvalidArgumentError("engine: expected 'python' or None with tls, got 'native', which has no TLS")


RPC_ENGINES = ("native", "python")


def rpc_engine(environ: Mapping[str, str] = os.environ) -> str:
    """What moves the frames of the RPC where the settings do not say: ``GLD_RPC_ENGINE``, else the native engine."""
    name = environ.get("GLD_RPC_ENGINE") or RPC_ENGINES[0]
    if name not in RPC_ENGINES:
        raise InvalidArgumentError(f"environment variable GLD_RPC_ENGINE: expected one of {RPC_ENGINES}, got {name!r}")
    return name


def unix_sockets(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether processes of one host speak by unix sockets: ``GLD_UNIX_SOCKETS``, 1 or 0, else yes.

    By TCP they share no memory, as those of several hosts.
    """
    value = environ.get("GLD_UNIX_SOCKETS") or "1"
    if value not in ("0", "1"):
        raise InvalidArgumentError(f"environment variable GLD_UNIX_SOCKETS: expected 0 or 1, got {value!r}")
    return value == "1"


def job_token(environ: Mapping[str, str] = os.environ) -> bytes | None:
    """The job's shared secret: the file named by ``GLD_TOKEN_FILE``, or ``GLD_TOKEN``; None where neither is set."""
    path = environ.get("GLD_TOKEN_FILE")
    if path:
        try:
            with open(path, "rb") as file:
                token, mode = file.read().strip(), os.fstat(file.fileno()).st_mode
        except OSError as error:
            raise InvalidArgumentError(f"GLD_TOKEN_FILE: cannot read {path}: {error}") from error
        if not token:
            raise InvalidArgumentError(f"GLD_TOKEN_FILE: expected a token in {path}, which is empty")
        if mode & stat.S_IROTH:  # a mounted secret may be the group's to read
            _log.warning("GLD_TOKEN_FILE: every user of this host may read %s (mode %o)", path, stat.S_IMODE(mode))
    else:
        token = environ.get("GLD_TOKEN", "").encode()
    if b"\n" in token or not token.isascii():  # it travels as a line of text
        raise InvalidArgumentError("GLD_TOKEN_FILE, GLD_TOKEN: expected a token of one line of ASCII text")
    if len(token) > _MOST_TOKEN_BYTES:
        raise InvalidArgumentError(
            f"GLD_TOKEN_FILE, GLD_TOKEN: expected a token of at most {_MOST_TOKEN_BYTES} bytes, got {len(token)}"
        )
    return token or None


def launcher_messages_fd(environ: Mapping[str, str] = os.environ) -> int:
    """A pipe on which the launcher says what it has given up, or -1 where there is none."""
    return _integer(environ, "GLD_MESSAGES_FD", -1)


def pulse_fd(environ: Mapping[str, str] = os.environ) -> int:
    """A pipe on which the launcher waits for signs of life of a server, or -1 where nobody does."""
    return _integer(environ, "GLD_PULSE_FD", -1)


def master_from_environ(environ: Mapping[str, str] = os.environ) -> tuple[str | None, int | None]:
    """Where workers meet by default: ``MASTER_ADDR``, and the port after ``MASTER_PORT``, which torch itself uses."""
    port = _integer(environ, "MASTER_PORT", -1)
    return environ.get("MASTER_ADDR"), port + 1 if port >= 0 else None


def port_range(environ: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """``GLD_PORT_RANGE``: first and last port that this process may listen on, as ``29400-29499``; None for any."""
    text = environ.get("GLD_PORT_RANGE")
    if not text:
        return None
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high) <= 65535):
        raise InvalidArgumentError(f"environment variable GLD_PORT_RANGE: expected LOW-HIGH, got {text!r}")
    return int(low), int(high)


def port_range_environ(low: int, high: int) -> dict[str, str]:
    """The variable that ``port_range`` reads back."""
    return {"GLD_PORT_RANGE": f"{low}-{high}"}


def metrics_address(environ: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """``GLD_METRICS``: where this process shows what it counts, ``[HOST:]PORT``; None if unset.

    Of several processes of a host each takes the first free port from there on. Without a host: this host alone.
    """
    text = environ.get("GLD_METRICS")
    return None if not text else parse_address(text, "environment variable GLD_METRICS")


def parse_address(text: str, name: str) -> tuple[str, int]:
    """Host and port of ``[HOST:]PORT``; the error names ``name``."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise InvalidArgumentError(f"{name}: expected [HOST:]PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def metrics_environ(address: str) -> dict[str, str]:
    """The variable that ``metrics_address`` reads back."""
    parse_address(address, "--metrics")
    return {"GLD_METRICS": address}


def trace_setting(environ: Mapping[str, str] = os.environ) -> tuple[str, tuple[int, int] | None] | None:
    """``GLD_TRACE``: the folder that this process writes a trace to; None if unset.

    ``GLD_TRACE_BATCHES``: first and last index of the batches to write of, as ``10-20``; None for all.
    """
    folder, text = environ.get("GLD_TRACE"), environ.get("GLD_TRACE_BATCHES")
    if not folder:
        return None
    if not text:
        return folder, None
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and int(low) <= int(high)):
        raise InvalidArgumentError(f"environment variable GLD_TRACE_BATCHES: expected FIRST-LAST, got {text!r}")
    return folder, (int(low), int(high))


def trace_environ(folder: str, indices: tuple[int, int] | None) -> dict[str, str]:
    """The variables that ``trace_setting`` reads back."""
    return {"GLD_TRACE": folder} | ({} if indices is None else {"GLD_TRACE_BATCHES": f"{indices[0]}-{indices[1]}"})


def share_partitions(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether processes of one host read each other's partitions in place; ``GLD_SHARE_PARTITIONS=0`` says no."""
    return _integer(environ, "GLD_SHARE_PARTITIONS", 1) != 0


def memory_budget(environ: Mapping[str, str] = os.environ) -> str | None:
    """``GLD_MEMORY_BUDGET``: most memory that a server uses for its clients, such as ``"8GB"``; None if unset."""
    return environ.get("GLD_MEMORY_BUDGET") or None


def row_cache(environ: Mapping[str, str] = os.environ) -> str | None:
    """``GLD_ROW_CACHE``: copies of others' rows on a server, as ``"4GB"`` or a share ``"0.1"``, or 0; None if unset."""
    return environ.get("GLD_ROW_CACHE") or None


def feature_memory(environ: Mapping[str, str] = os.environ) -> str | None:
    """``GLD_FEATURE_MEMORY``: most memory of servers and of ``infer`` for features in files, as ``"8GB"``; or None."""
    return environ.get("GLD_FEATURE_MEMORY") or None


def _seconds(environ: Mapping[str, str], name: str, default: str) -> float:
    text = environ.get(name) or default
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(f"environment variable {name}: expected a number of seconds, got {text!r}") from None


def heartbeat_timeout_s(environ: Mapping[str, str] = os.environ) -> float:
    """``GLD_HEARTBEAT_TIMEOUT``: seconds of silence after which a process is given up as frozen; 3."""
    return _seconds(environ, "GLD_HEARTBEAT_TIMEOUT", "3")


def interpreter_timeout_s(environ: Mapping[str, str] = os.environ) -> float:
    """``GLD_INTERPRETER_TIMEOUT``: seconds after which a worker whose interpreter runs nothing has frozen; 30."""
    return _seconds(environ, "GLD_INTERPRETER_TIMEOUT", "30")


def lease_timeout_s(environ: Mapping[str, str] = os.environ) -> float:
    """``GLD_LEASE_TIMEOUT``: seconds that a client of a server keeps what it holds when its connection is lost; 3."""
    return _seconds(environ, "GLD_LEASE_TIMEOUT", "3")


def _first_set(environ: Mapping[str, str], *names: str) -> str:
    """The first of these variables that is set; the first where none is."""
    return next((name for name in names if name in environ), names[0])


def virtual_cluster_max_retries(environ: Mapping[str, str] = os.environ) -> int:
    """How often a virtual cluster waits for machines: ``GLD_VIRTUAL_CLUSTER_MAX_RETRIES``, at least 1; 6 if unset.

    NeMo RL calls it ``NRL_VIRTUAL_CLUSTER_MAX_RETRIES``, which holds where the other is not set.
    """
    name = _first_set(environ, "GLD_VIRTUAL_CLUSTER_MAX_RETRIES", "NRL_VIRTUAL_CLUSTER_MAX_RETRIES")
    retries = _integer(environ, name, 6)
    if retries < 1:
        raise InvalidArgumentError(f"environment variable {name}: expected at least 1, got {retries}")
    return retries


def nsight_worker_patterns(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Names of workers to be profiled, as patterns between commas: ``GLD_NSYS_WORKER_PATTERNS`` (or ``NRL_…``)."""
    text = environ.get(_first_set(environ, "GLD_NSYS_WORKER_PATTERNS", "NRL_NSYS_WORKER_PATTERNS"), "")
    return [pattern.strip() for pattern in text.split(",") if pattern.strip()]


def virtual_environments_root(environ: Mapping[str, str] = os.environ) -> Path:
    """Where virtual environments of workers are: ``GLD_VENV_DIR`` (or ``NEMO_RL_VENV_DIR``); in the user's cache."""
    root = environ.get(_first_set(environ, "GLD_VENV_DIR", "NEMO_RL_VENV_DIR"))
    return Path(root).absolute() if root else Path.home() / ".cache" / "graphlearn_dist" / "venvs"


def force_rebuild_environments(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether groups build the environments of their workers anew: ``GLD_FORCE_REBUILD_VENVS`` (or ``NRL_…``).

    ``1`` and ``true`` say so, ``0``, ``false`` and nothing say no.
    """
    name = _first_set(environ, "GLD_FORCE_REBUILD_VENVS", "NRL_FORCE_REBUILD_VENVS")
    text = environ.get(name, "").lower()
    if text not in ("", "0", "false", "1", "true"):
        raise InvalidArgumentError(f"environment variable {name}: expected 1, true, 0 or false, got {text!r}")
    return text in ("1", "true")
