"""Hosts for bench_hosts.py, and the servers, trainers and loaders that run on them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from harness import GROUPS, ZONES_OF_GROUP, cpu_seconds, planted_edges, power_law_edges, process_tree
from line_programs import LineProgram

from graphlearn_dist.data import ZoneOrder
from graphlearn_dist.partition import RandomPartitioner, TablePartitioner, number_parts, save_node_order
from graphlearn_dist.utils.common import get_free_port

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.hosts import HostNetwork, host_network, why_no_hosts  # noqa: E402

DEADLINE_S = 300.0  # only a hang takes as long
PORT = 29400
HOLDERS = (b'"role": "server"', b'"role": "member"')
BATCHES_AHEAD = 4  # of a collocated loader, as many as a sampling process has under way
SETTLE_S = 1.0  # of a turn before it is measured: batches made ahead are read, those under way are as many as later


EDGE_TYPES = {("user", "likes", "item"): 3, ("item", "liked_by", "user"): 3, ("user", "follows", "user"): 2}


def make_graph(directory: Path, graph: str, parts: int, args: argparse.Namespace, *, features: bool) -> Path:
    """A power-law graph in so many partitions: of one type, or of two types of nodes and three of edges."""
    generator = torch.Generator().manual_seed(0)
    half, shares = args.nodes // 2, sum(EDGE_TYPES.values())
    nodes: Any
    edges: Any
    rows: Any
    if graph.startswith("communities"):
        return make_communities(directory, graph, parts, args, features=features)
    if graph == "one type":
        nodes, edges = args.nodes, torch.from_numpy(power_law_edges(args.nodes, args.edges))
        rows = torch.randn(nodes, args.features, generator=generator)
    else:
        nodes = {"user": half, "item": half}
        edges = {
            edge_type: torch.from_numpy(power_law_edges(half, args.edges * share // shares, seed=seed))
            for seed, (edge_type, share) in enumerate(EDGE_TYPES.items())
        }
        rows = {ntype: torch.randn(half, args.features, generator=generator) for ntype in nodes}
    node_feat = {"node_feat": rows} if features else {}
    RandomPartitioner(str(directory), parts, nodes, edges, edge_assign_strategy="by_dst", **node_feat).partition()
    return directory


def make_communities(directory: Path, graph: str, parts: int, args: argparse.Namespace, *, features: bool) -> Path:
    """A graph of communities in random partitions; or in those of near nodes, with the order of the nodes."""
    drawn, zones = map(torch.from_numpy, planted_edges(args.nodes, args.edges // 2))
    edges, order = torch.cat([drawn, drawn.flip(0)], 1), ZoneOrder.of_zones(zones, GROUPS)
    options: dict[str, Any] = {"edge_assign_strategy": "by_dst"}
    if features:
        options["node_feat"] = torch.randn(len(zones), args.features, generator=torch.Generator().manual_seed(0))
    if graph == "communities":
        RandomPartitioner(str(directory), parts, len(zones), edges, **options).partition()
        return directory
    owners = number_parts(zones * parts // (int(zones.max()) + 1), order)
    TablePartitioner(str(directory), parts, len(zones), edges, node_owners=owners, **options).partition()
    save_node_order(directory, order)
    return directory


def seeds_of_graph(graph: str, nodes: int) -> dict[str, Any]:
    """How many seeds of which type a graph has, and whether batches of it are of near ones."""
    whole = {"one type": nodes, "typed": nodes // 2}.get(
        graph, nodes // (GROUPS * ZONES_OF_GROUP) * GROUPS * ZONES_OF_GROUP
    )
    return {
        "seeds": whole,
        "rounds": 10,
        "seed_type": "user" if graph == "typed" else None,
        "locality": GROUPS if graph == "communities, near" else None,
    }


class Graphs:
    """Partition directories, each made when it is first asked for."""

    def __init__(self, root: Path, args: argparse.Namespace) -> None:
        self._root = root
        self._args = args

    def get(self, graph: str, parts: int, *, features: bool = True) -> str:
        """That of a graph in so many partitions."""
        sizes = (self._args.nodes, self._args.edges, self._args.features if features else 0)
        name = "-".join(map(str, (graph.replace(", ", "-").replace(" ", "-"), parts, *sizes)))
        directory, unfinished = self._root / name, self._root / f"{name}.unfinished"
        if not directory.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            make_graph(unfinished, graph, parts, self._args, features=features).rename(directory)
        return str(directory)


# --- hosts -------------------------------------------------------------------------------------------------------


class Hosts(Protocol):
    """Where the programs of a row run."""

    def command(self, number: int, argv: Sequence[str]) -> list[str]: ...
    def address(self, number: int) -> str: ...
    def boot_id(self, number: int) -> str: ...
    def sent_bytes(self) -> int: ...
    def pids(self, programs: Sequence[LineProgram]) -> list[int]: ...


class Namespaces:
    """Hosts in namespaces."""

    def __init__(self, network: HostNetwork) -> None:
        self._network = network
        self.address = network.address

    def command(self, number: int, argv: Sequence[str]) -> list[str]:
        return self._network.hosts[number].command(*argv)

    def boot_id(self, number: int) -> str:
        return ""  # a host's own says it

    def sent_bytes(self) -> int:
        return sum(self._network.sent_bytes(number) for number in range(len(self._network.hosts)))

    def pids(self, programs: Sequence[LineProgram]) -> list[int]:
        return [pid for host in self._network.hosts for pid in host.pids()]


class Loopback:
    """No hosts: processes of this machine that connect to each other by TCP, unless they stand for one host."""

    def __init__(self, count: int) -> None:
        self._boot_ids = [str(uuid.uuid4()) for _ in range(count)]

    def command(self, number: int, argv: Sequence[str]) -> list[str]:
        return list(argv)

    def address(self, number: int) -> str:
        return "127.0.0.1"

    def boot_id(self, number: int) -> str:
        return self._boot_ids[number]

    def sent_bytes(self) -> int:
        line = next(x for x in Path("/proc/net/dev").read_text().splitlines() if x.strip().startswith("lo:"))
        return int(line.partition(":")[2].split()[8])

    def pids(self, programs: Sequence[LineProgram]) -> list[int]:
        return [pid for one in programs for pid in process_tree(one.pid)]


@contextlib.contextmanager
def open_hosts(count: int, args: argparse.Namespace) -> Iterator[Hosts]:
    """Namespaces where this user may make them, else loopback."""
    if args.loopback or why_no_hosts("tc"):
        yield Loopback(count)
    else:
        with host_network(count, args.rate) as network:
            yield Namespaces(network)


# --- programs ----------------------------------------------------------------------------------------------------


Opened = TypeVar("Opened", bound="Readers")


class Readers:
    """Servers, and trainers that read from them, on so many hosts.

    Attributes:
        servers: the programs that serve; filled by who starts them.
        trainers: likewise those that read.
        counters: the files in which trainers count batches, and the requests that they answer each other.
    """

    def __init__(self, hosts: Hosts, count: int, root: Path) -> None:
        self.hosts = hosts
        self.servers: list[LineProgram] = []
        self.trainers: list[LineProgram] = []
        self._stack = ExitStack()
        self.counters = [root / f"{uuid.uuid4()}.count" for _ in range(count)]
        for counter in self.counters:
            np.zeros(2, np.int64).tofile(counter)
        self._counts = [np.memmap(counter, np.int64, "r") for counter in self.counters]

    def ask(self, programs: Sequence[LineProgram], **command: Any) -> list[dict[str, Any]]:
        """All of them at once."""
        for one in programs:
            one.tell(**command)
        return [one.answer(DEADLINE_S, command["op"]) for one in programs]

    def read(
        self, seconds: float, trainers: Sequence[LineProgram] | None = None, pids: list[int] | None = None
    ) -> dict[str, float]:
        """One turn of these trainers, all unless given, and the CPU time of these processes, those of all hosts."""
        trainers = self.trainers if trainers is None else trainers
        self.ask(trainers, op="go")
        time.sleep(SETTLE_S)  # nothing waits for it: what is measured begins here
        pids = self.pids() if pids is None else pids
        before = self._state(pids)
        time.sleep(seconds)
        after = self._state(pids)
        self.ask(trainers, op="pause")
        wall, cpu, sent, requests, batches = (b - a for a, b in zip(before, after, strict=True))
        return {
            "batches": batches,
            "per_s": batches / wall,
            "cpu_ms": 1000 * cpu / batches,
            "bytes": sent / batches,
            "requests": requests / batches,
        }

    def pids(self) -> list[int]:
        """All processes of all hosts."""
        return self.hosts.pids([*self.servers, *self.trainers])

    def _state(self, pids: list[int]) -> tuple[float, float, int, int, int]:
        """(seconds, CPU seconds, bytes sent, requests that servers answered, batches), now."""
        batches = sum(int(counts[0]) for counts in self._counts)
        return time.perf_counter(), cpu_seconds(pids), self.hosts.sent_bytes(), self.requests(), batches

    def requests(self) -> int:
        """How many were answered; 0 where nobody says."""
        return sum(int(counts[1]) for counts in self._counts)

    def __enter__(self: Opened) -> Opened:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


def program(job: dict[str, Any]) -> list[str]:
    """The command line of a program of ``host_programs``."""
    return [sys.executable, str(Path(__file__).with_name("host_programs.py")), json.dumps(job)]


def start_program(command: Sequence[str], label: str, environment: dict[str, str]) -> LineProgram:
    """Starts it; what it logs goes to this process's standard error."""
    return LineProgram(label, command, env=environment)


class Job(Readers):
    """Servers and trainers of one graph on so many hosts, and so many other clients beside them.

    In other modes than ``remote`` there are trainers only, which hold the partitions and answer each other.
    """

    def __init__(
        self,
        hosts: Hosts,
        count: int,
        graph: str,
        graphs: Graphs,
        root: Path,
        args: argparse.Namespace,
        *,
        mode: str = "remote",
        num_others: int = 1,
    ):
        super().__init__(hosts, count, root)
        self.count = count
        self._clients = count + num_others
        port = get_free_port() if isinstance(hosts, Loopback) else PORT
        self._common = {
            "servers": count, "clients": self._clients, "master": hosts.address(0), "port": port,
            **seeds_of_graph(graph, args.nodes),
        }  # fmt: skip
        self._environment = {
            **os.environ, "GLD_TOKEN": secrets.token_hex(32), "GLD_SHARE_PARTITIONS": "0", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        options = {} if args.row_cache is None else {"row_cache": args.row_cache}
        directory = graphs.get(graph, count)
        role, loader = "trainer" if mode == "remote" else "member", loader_options(mode, args)
        with ExitStack() as undo:
            for rank in range(count if mode == "remote" else 0):
                server = self._start("server", rank, directory=directory, options=options)
                self.servers.append(undo.enter_context(server))
            for server in self.servers:
                server.answer(DEADLINE_S, "start")
            for rank, counter in enumerate(self.counters):
                trainer = self._start(role, rank, mode=mode, directory=directory, counter=str(counter), options=loader)
                self.trainers.append(undo.enter_context(trainer))
            for trainer in self.trainers:
                trainer.answer(DEADLINE_S, "start")
            self._stack = undo.pop_all()

    def _start(self, role: str, host: int, **more: Any) -> LineProgram:
        job = {"role": role, "rank": host, "boot_id": self.hosts.boot_id(host), **self._common, **more}
        return start_program(self.hosts.command(host, program(job)), f"{role} {host}", self._environment)

    def busy_process(self) -> LineProgram:
        """A process of the last host that runs Python when it is told to, and is no client."""
        job = {"role": "busy", "boot_id": ""}
        return start_program(self.hosts.command(self.count - 1, program(job)), "busy", self._environment)

    def flooder(self) -> LineProgram:
        """A client on the last host that floods server 0 when it is told to."""
        job = {"role": "flood", "boot_id": self.hosts.boot_id(self.count - 1), **self._common, "rank": self.count}
        return start_program(self.hosts.command(self.count - 1, program(job)), "flood", self._environment)

    def requests(self) -> int:
        """How many servers, or trainers, have answered."""
        return super().requests() + sum(reply["requests"] for reply in self.ask(self.servers, op="stats"))

    @property
    def holders(self) -> list[LineProgram]:
        """The programs that hold partitions."""
        return self.servers or self.trainers

    def wait_for_copies(self) -> None:
        """Returns when nobody fetches copies of others' rows."""
        while any(reply["copies"]["is_filling"] for reply in self.ask(self.holders, op="stats")):
            time.sleep(0.1)

    def copies(self) -> dict[str, int]:
        """What all copies of others' rows are, and were good for so far."""
        found = [reply["copies"] for reply in self.ask(self.holders, op="stats")]
        return {key: sum(int(one[key]) for one in found) for key in ("nbytes", "rows", "hits", "misses", "bytes_saved")}

    def forget_peaks(self) -> None:
        """Peaks of memory are counted from now on."""
        for pid in self.pids():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peaks(self) -> dict[str, float]:
        """MiB that a server, or a trainer that holds a partition, and a sampling worker had at most."""
        found = {"server_mib": 0.0, "worker_mib": 0.0}
        for pid in self.pids():
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            is_server = b"host_programs.py" in line and any(role in line for role in HOLDERS)  # not a peer's
            kind = "server_mib" if is_server else "worker_mib" if b"fork_server" in line else None
            if kind:
                status = Path(f"/proc/{pid}/status").read_text()
                peak = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmHWM:"))
                found[kind] = max(found[kind], peak / 1024)
        return found


def loader_options(mode: str, args: argparse.Namespace) -> dict[str, Any]:
    """Of a mode's loaders, by which as many batches are under way in each."""
    recent = {"recent_rows": int(args.recent_rows) if str(args.recent_rows).isdigit() else args.recent_rows}
    copies = {"row_cache": args.row_cache}
    match mode:
        case "remote":
            return {"num_workers": args.workers, "buffer_size": args.buffer, **recent}
        case "mp":
            return {"num_workers": args.workers, "channel_size": args.buffer, **copies, **recent}
        case _:
            return {"prefetch_size": BATCHES_AHEAD, **copies, **recent}


class Wire:
    """Two programs that move bytes from host 0 to host 1, and nothing else: what the network alone costs.

    Where there is but one host, both are there, and have nothing to do.
    """

    def __init__(self, hosts: Hosts, count: int) -> None:
        job = {"role": "wire", "boot_id": "", "address": hosts.address(0)}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with ExitStack() as undo:
            self._ends = []
            for rank in (0, 1):
                command = hosts.command(min(rank, count - 1), program({**job, "rank": rank}))
                end = start_program(command, f"wire {rank}", environment)
                self._ends.append(undo.enter_context(end))
                job |= end.answer(DEADLINE_S, "start")
            self._stack = undo.pop_all()

    def cpu_ms(self, num_bytes: float, rounds: float) -> float:
        """CPU milliseconds of both ends for so many bytes in so many answers, each asked for when the last is there."""
        if rounds == 0:
            return 0.0
        each, count = round(num_bytes / rounds), max(100, round(1e9 / max(num_bytes, 1e6)))
        for end in self._ends:
            end.tell(op="move", bytes=each, rounds=count)
        return sum(1000 * end.answer(DEADLINE_S, "move")["cpu_s"] for end in self._ends) * rounds / count

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()


class InProcess:
    """The loader without servers, in a process of its own."""

    def __init__(self, graph: str, graphs: Graphs, root: Path, args: argparse.Namespace) -> None:
        counter = root / f"{uuid.uuid4()}.count"
        np.zeros(1, np.int64).tofile(counter)
        directories = {name: graphs.get(graph, 1, features=name == "features") for name in ("features", "bare")}
        job = {
            "role": "in process", "boot_id": "", "directories": directories, "counter": str(counter),
            **seeds_of_graph(graph, args.nodes),
        }  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.program = start_program(program(job), "in-process loader", environment)
        self.program.answer(DEADLINE_S, "start")
        self._counts = np.memmap(counter, np.int64, "r")

    def read(self, seconds: float) -> dict[str, float]:
        """One turn."""
        self.program.ask(DEADLINE_S, op="go")
        time.sleep(SETTLE_S / 4)
        began, cpu, count = time.perf_counter(), cpu_seconds([self.program.pid]), int(self._counts[0])
        time.sleep(seconds)
        batches, cpu = int(self._counts[0]) - count, cpu_seconds([self.program.pid]) - cpu
        wall = time.perf_counter() - began
        self.program.ask(DEADLINE_S, op="pause")
        return {"per_s": batches / wall, "cpu_ms": 1000 * cpu / batches}

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.program.__exit__(None, None, None)
