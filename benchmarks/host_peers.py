"""Distributed peers in the hosts of bench_hosts.py: the same graph, cut at random, a server and a trainer on each.

A peer is a program in ``peers/`` that takes a job as ``host_programs.py`` does, with the roles ``can`` (says its
version), ``partition``, ``server`` and ``trainer``; it runs in an interpreter of its own, with nothing of this project.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import power_law_edges
from host_jobs import DEADLINE_S, Hosts, Readers, start_program
from line_programs import LineProgram, WorkerLost

HERE = Path(__file__).parent
PROGRAMS = {"DistDGL": "dist_dgl.py", "GLT": "dist_glt.py"}
# Freed memory stays with the process, which is best for them; gloo and torch's RPC are told their device, as hosts have
# no names; files of peers/ are not taken for libraries of the same name, and OpenMP's threads do not spin.
ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "34359738368", "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(HERE),
    "PYTHONSAFEPATH": "1", "OMP_WAIT_POLICY": "PASSIVE", "DGLBACKEND": "pytorch",
}  # fmt: skip


@dataclass(frozen=True)
class Peer:
    """A peer that is here: with which interpreter, and what it says of itself."""

    name: str
    python: str
    version: str

    def command(self, job: dict[str, object]) -> list[str]:
        """The command line of one of its programs."""
        return [self.python, str(HERE / "peers" / PROGRAMS[self.name]), json.dumps(job)]


def find_peers(pythons: Sequence[str], names: Sequence[str] = tuple(PROGRAMS)) -> list[Peer]:
    """Those of the peers that these interpreters can import."""
    found = []
    for name in names:
        for python in pythons:
            peer = Peer(name, python, "")
            with contextlib.suppress(WorkerLost), _start(peer, {"role": "can"}, subprocess.DEVNULL) as program:
                found.append(Peer(name, python, program.answer(DEADLINE_S, "can")["version"]))
                break
    return found


def _start(peer: Peer, job: dict[str, object], stderr: int | None = None) -> LineProgram:
    environment = {**os.environ, **ENVIRONMENT}
    return LineProgram(f"{peer.name}, {job['role']}", peer.command(job), env=environment, stderr=stderr)


class PeerJob(Readers):
    """Servers and trainers of a peer on so many hosts; they end with a ``with`` block."""

    def __init__(self, peer: Peer, hosts: Hosts, count: int, root: Path, args: argparse.Namespace) -> None:
        super().__init__(hosts, count, root)
        self.peer = peer
        edges, directory = root / "edges.npy", root / f"{peer.name}-{count}"
        common = {
            "addresses": [hosts.address(rank) for rank in range(count)], "nodes": args.nodes, "width": args.features,
            "edges": str(edges), "directory": str(directory),
        }  # fmt: skip
        if not edges.exists():
            np.save(edges, power_law_edges(args.nodes, args.edges))
        if not directory.exists():
            with _start(peer, {**common, "role": "partition"}) as program:
                program.answer(DEADLINE_S, "partition")
        with ExitStack() as undo:
            for role, programs in (("server", self.servers), ("trainer", self.trainers)):
                for rank, counter in enumerate(self.counters):
                    command = peer.command({**common, "role": role, "rank": rank, "counter": str(counter)})
                    environment = {**os.environ, **ENVIRONMENT}
                    program = start_program(hosts.command(rank, command), f"{peer.name} {role} {rank}", environment)
                    programs.append(undo.enter_context(program))
            for trainer in self.trainers:
                trainer.answer(DEADLINE_S, "start")
            self._stack = undo.pop_all()
