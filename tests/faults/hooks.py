"""What the fault harness changes within the processes of a job, by what their environment says."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

from graphlearn_dist.rpc.job import membership
from graphlearn_dist.rpc.peers.identity import PeerAddress
from tests.faults.link import join

DIRECTORY = "GLD_FAULT_DIR"  # of this job
PORTS = "GLD_FAULT_PORTS"  # of the proxies in front of the servers, by rank; unset where there are none
NETWORKS = "GLD_FAULT_NETWORKS"  # of the hosts, by rank of what lies there; unset where there is one
RAISE_AT = "GLD_FAULT_RAISE_AT"  # the batch, as epoch:index, that raises where it is sampled
INJECTED = "injected by the fault harness"
HOLD = signal.SIGUSR2  # has a process of a job keep its interpreter's lock for so long:
HELD_S = 5.5


def wait_for_go() -> None:
    """Says that the moment has come, and waits until the harness lets this trainer go on."""
    print("now", flush=True)
    with (Path(os.environ[DIRECTORY]) / "go").open("rb", buffering=0) as pipe:
        pipe.read(1)


def install() -> None:
    """Called by each process of a job before its program."""
    signal.signal(HOLD, lambda signum, frame: ctypes.PyDLL(None).usleep(round(1e6 * HELD_S)))
    if NETWORKS in os.environ and "GLD_RANK" in os.environ:
        join(os.environ[NETWORKS].split(",")[int(os.environ["GLD_RANK"])])
    if PORTS in os.environ and os.environ["GLD_ROLE"] == "server":
        _advertise_proxy(int(os.environ[PORTS].split(",")[int(os.environ["GLD_RANK"])]))
    if RAISE_AT in os.environ:
        _raise_at(*map(int, os.environ[RAISE_AT].split(":")))


def server_address(directory: Path, rank: int) -> tuple[str, int] | None:
    """Where a server that stands behind a proxy really listens; None before it has said so."""
    path = directory / f"server-{rank}.address"
    if not path.exists():
        return None
    host, _, port = path.read_text().rpartition(":")
    return host, int(port)


def _advertise_proxy(port: int) -> None:
    """Others are told of the proxy, and of no unix socket: as between hosts."""
    advertised = membership.Membership._advertised

    def behind_proxy(self: membership.Membership, master: PeerAddress) -> PeerAddress:
        own = advertised(self, master)
        path = Path(os.environ[DIRECTORY]) / f"server-{os.environ['GLD_RANK']}.address"
        path.with_suffix(".new").write_text(f"{own.host}:{own.port}")
        path.with_suffix(".new").replace(path)
        return PeerAddress("127.0.0.1", port, name=own.name)

    membership.Membership._advertised = behind_proxy  # type: ignore[method-assign]


def _raise_at(epoch: int, index: int) -> None:
    from graphlearn_dist.distributed.sampling.batches import PartitionedBatches

    make = PartitionedBatches.make_in

    async def make_or_raise(self: PartitionedBatches, *args: object) -> object:
        at, indices, *_ = args
        if at == epoch and index in indices:  # type: ignore[operator]
            raise ValueError(INJECTED)
        return await make(self, *args)  # type: ignore[arg-type]

    PartitionedBatches.make_in = make_or_raise  # type: ignore[method-assign,assignment]
