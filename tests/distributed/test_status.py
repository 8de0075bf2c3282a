"""What loaders of all modes count, what servers show, and a job that is looked at from outside."""

from __future__ import annotations

import re
import socket
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.cli import _fitted, main
from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    DistNeighborLoader,
    DistServer,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
    dist_loader,
    request_server,
)
from graphlearn_dist.distributed.session.job_status import JobObserver, JobStatus, observe
from graphlearn_dist.errors import AuthenticationError, ChannelClosedError, PeerLostError
from graphlearn_dist.loader import NeighborLoader
from graphlearn_dist.telemetry import BatchSums, collect
from graphlearn_dist.telemetry.process_status import process_status
from graphlearn_dist.utils.system.job_file import JobAddress
from tests.support.jobs import NUM_FEATURES, NUM_NODES, Job, load, make_partitions, running_servers

IDS = torch.arange(NUM_NODES)
MODES: dict[str, Any] = {
    "collocated": CollocatedDistSamplingWorkerOptions(),
    "mp": MpDistSamplingWorkerOptions(num_workers=2, channel_size="16MB"),
}


def sizes_of(batches: Iterable[Any]) -> list[int]:
    """Batches, seeds, nodes, edges, and bytes of features and labels."""
    found = [(1, b.batch_size, b.num_nodes, b.num_edges, b.x.nbytes + b.y.nbytes) for b in batches]
    return [sum(column) for column in zip(*found, strict=True)]


def counted(sums: BatchSums) -> list[int]:
    assert sums.sample_ns > 0
    assert sums.rows_ns > 0
    return [sums.batches, sums.seeds, sums.nodes, sums.edges, sums.row_bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    directory = make_partitions(tmp_path_factory.mktemp("two"), 2)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GLD_SHARE_PARTITIONS", "0")
        with running_servers(directory, directory) as job:
            with job.client():
                for rank in range(2):  # both have joined when they answer
                    request_server(rank, DistServer.get_dataset_meta)
            yield job


@pytest.mark.parametrize("mode", MODES)
def test_loaders_in_this_process(mode: str, whole: Path) -> None:
    with DistNeighborLoader(
        load(whole), [2, 2], IDS, batch_size=50, collect_features=True, worker_options=MODES[mode]
    ) as loader:
        before = loader.stats()
        assert (before.batches, before.remaining, before.wait_s) == (0, 3, 0.0)
        expected = sizes_of([*loader, *loader])
        stats = loader.stats()
        assert counted(stats.made.sums) == expected
        assert (stats.batches, stats.remaining, stats.made.restarts) == (6, 3, 0)
        assert stats.wait_s > 0
        assert stats.made.where == {"collocated": "this process", "mp": "2 processes"}[mode]
        shown = {metric.name: metric.value for metric in collect() if metric.labels.get("loader") == stats.name}
        assert (shown["loader_batches_total"], shown["edges_total"]) == (6, expected[3])
        next(loader)
        assert repr(loader) == f"DistNeighborLoader({stats.made.where}, 3 batches an epoch, 2 to come)"
    assert repr(loader) == "DistNeighborLoader(shut down)"
    with pytest.raises(ChannelClosedError):
        loader.stats()


def test_who_looks_while_a_loader_is_opened(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever shows this process comes at any moment: half a loader shows nothing."""
    looked: list[bool] = []

    def look(*_: Any) -> Any:
        names = {metric.labels.get("loader") for metric in collect()}
        process_status()
        looked.append("DistNeighborLoader" in str(names))
        return opened(*_)

    opened = dist_loader.open_producer
    monkeypatch.setattr(dist_loader, "open_producer", look)
    with DistNeighborLoader(load(whole), [2], IDS, batch_size=50) as loader:
        assert looked
        assert len([metric for metric in collect() if metric.labels.get("loader") == loader._label]) == 0
        next(loader)
        assert len([metric for metric in collect() if metric.labels.get("loader") == loader._label]) > 3


def test_local_loaders_of_a_data_set_and_of_pygs_data(whole: Path) -> None:
    dataset = load(whole)
    rows, cols = dataset.edges(None)[1:]
    from torch_geometric.data import Data

    data = Data(
        x=torch.zeros(NUM_NODES, NUM_FEATURES), y=IDS, edge_index=torch.stack([rows, cols]), num_nodes=NUM_NODES
    )
    for source, has_bytes in ((dataset, True), (data, False)):
        loader = NeighborLoader(source, [2, 2], input_nodes=IDS, batch_size=50)
        expected = sizes_of(loader)
        assert counted(loader.stats().made.sums) == [*expected[:4], expected[4] if has_bytes else 0]


def test_a_loader_of_servers(job: Job) -> None:
    with (
        job.client(),
        DistNeighborLoader(
            None,
            [2, 2],
            IDS,
            batch_size=10,
            collect_features=True,
            worker_options=RemoteDistSamplingWorkerOptions(server_rank=[0, 1], rpc_timeout=60, prefetch_bytes=1),
        ) as loader,
    ):
        expected = sizes_of(loader)
        stats = loader.stats()
        assert counted(stats.made.sums) == expected
        assert stats.made.where == "servers 0, 1"
        assert repr(loader) == "DistNeighborLoader(servers 0, 1, 12 batches an epoch, 12 to come)"
        assert stats.made.num_workers == 2
        stages = {"seeds", "sample", "split", "other partitions", "stitch", "rows", "copy", "credit", "convert"}
        assert stages <= stats.stages_ms.keys()
        came: defaultdict[str, float] = defaultdict(float)
        for metric in collect():  # over the socket and in memory
            if metric.name == "received_bytes_total" and metric.labels["peer"] == "server 1":
                came[metric.labels["kind"]] += metric.value
        assert came["query answer"] > stats.made.sums.row_bytes / 3  # half of the batches
        with observe(JobAddress("127.0.0.1", job.port, None), timeout_s=60) as observer:
            look = observer.look()
            again = observer.look()
        assert [(one.member.role, one.member.rank, one.error) for one in look.members] == [
            ("server", 0, ""),
            ("server", 1, ""),
            ("client", 0, ""),
        ]
        servers = [one.status for one in look.members if one.member.role == "server" and one.status is not None]
        served = [served for status in servers for served in status.served]
        assert [(one.client, one.made.num_workers, one.ready) for one in served] == [("client 0", 1, 0)] * 2
        # That an epoch is over is an item, too, which may wait for room when its batches were all read.
        now, then = sum((one.made.sums for one in served), BatchSums()), stats.made.sums
        assert replace(now, send_ns=0) == replace(then, send_ns=0)
        assert all(status.used_bytes == one.room_bytes > 0 for status, one in zip(servers, served, strict=True))
        assert [one.credit_bytes for one in served] == [1, 1]
        own = look.members[2].status
        assert own is not None
        assert [one.batches for one in own.loaders if one.made is None and one.name == stats.name] == [12]
        assert sum(sent for status in servers for sent, _ in [status.peers["client 0"]]) > 0
        text = again.describe(look)
        assert "for client 0: 1 process" in text
        assert f"{stats.name}: epoch 0" in text


def test_who_looks_is_no_member(job: Job) -> None:
    with observe(JobAddress("127.0.0.1", job.port, None), timeout_s=60) as observer:
        assert [one.member.role for one in observer.look().members] == ["server", "server"]
        assert [one.member.role for one in observer.look().members] == ["server", "server"]


def test_top_and_status(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    place = f"127.0.0.1:{job.port}"
    assert main(["status", place]) == 0
    assert main(["top", place, "--count", "2", "--every", "0.01", "--timeout", "60"]) == 0
    out = capsys.readouterr().out
    assert out.count("process   host") == 3
    assert "\x1b" not in out  # a file is not cleared
    assert out.rstrip().endswith("No loader gave a batch.")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PeerLostError("server-0", "its connection broke"), 1, "the job has ended, or nobody can be asked for it: "),
        (KeyboardInterrupt(), 0, ""),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_how_top_ends(
    error: BaseException,
    code: int,
    said: str,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    looks = iter([JobStatus(), error])

    def look(_: JobObserver) -> JobStatus:
        if isinstance(found := next(looks), BaseException):
            raise found
        return found

    monkeypatch.setattr(JobObserver, "look", look)
    assert main(["top", f"127.0.0.1:{job.port}", "--every", "0.01"]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", ["--every=0", "--every=-1", "--every=nan", "--every=x", "--count=0", "--timeout=inf"]
)
def test_options_of_top_that_are_none(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["top", "9", option])
    name, _, value = option.partition("=")
    assert re.search(rf"argument {name}: expected .* got {value!r}", capsys.readouterr().err)


def test_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    line = "server 0  vm  0:09  168 MB  28%  152.3 MB/s  5.0 MB/s  2,062 of 12,370 MB for batches"
    assert _fitted(f"{line}\n\nshort").splitlines() == [
        "server 0  vm  0:09  168 MB  28%  152.3 MB/s  5.0",
        "        MB/s  2,062 of 12,370 MB for batches",
        "",
        "short",
    ]


def test_a_wrong_token_and_no_registry(job: Job) -> None:
    with (
        observe(JobAddress("127.0.0.1", job.port, b"no"), timeout_s=60) as observer,
        pytest.raises(AuthenticationError, match="token"),
    ):
        observer.look()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with observe(JobAddress("127.0.0.1", port, None), timeout_s=60) as observer, pytest.raises(PeerLostError):
        observer.look()
