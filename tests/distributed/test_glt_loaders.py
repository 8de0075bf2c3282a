"""Distributed loaders, samplers and servers of ``graphlearn_dist.glt``: what is the core's, and what has GLT's form."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import graphlearn_dist.glt as glt
from graphlearn_dist import _C
from graphlearn_dist.distributed import (
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistNeighborSampler,
    DistServer,
    DistSubGraphLoader,
    register_function,
    request_server,
)
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.rpc import decode_blob, encode
from graphlearn_dist.sampler import NeighborSampler
from graphlearn_dist.sampler.base import NegativeSampling, NodeSamplerInput, SamplingConfig
from graphlearn_dist.utils import no_effect
from tests.support.jobs import Job, running_servers
from tests.support.oracle import GRAPHS, load_partitions, write_partitions
from tests.support.processes import run_processes, start

pytestmark = pytest.mark.usefixtures("one_fork_server")

KINDS = ["homogeneous", "typed"]
BUYS = ("user", "buys", "item")
MODES: dict[str, Any] = {
    "collocated": glt.distributed.CollocatedDistSamplingWorkerOptions(),
    "mp": glt.distributed.MpDistSamplingWorkerOptions(channel_size="16MB", worker_devices=torch.device("cpu")),
    "remote": glt.distributed.RemoteDistSamplingWorkerOptions([0], buffer_size="16MB"),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def directory(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_partitions(GRAPHS[kind](), tmp_path_factory.mktemp(kind), "random", 1, "out")


@pytest.fixture(scope="module")
def servers(directory: Path) -> Iterator[Job]:
    with running_servers(directory) as job:
        yield job


@pytest.fixture
def job(servers: Job) -> Iterator[Job]:
    with servers.client():
        yield servers


def arguments(kind: str, mode: str, directory: Path) -> dict[str, Any]:
    data = None if mode == "remote" else load_partitions(directory, 1)[0]
    return {
        "data": data, "batch_size": 20, "shuffle": True, "random_seed": 3, "worker_options": MODES[mode]
    }  # fmt: skip


def seeds_of(kind: str) -> Any:
    return torch.arange(60) if kind == "homogeneous" else ("user", torch.arange(60))


@pytest.mark.parametrize("mode", MODES)
def test_nodes_have_labels_without_features(job: Job, kind: str, mode: str, directory: Path) -> None:
    given = {**arguments(kind, mode, directory), "num_neighbors": [3, 2], "input_nodes": seeds_of(kind)}
    with glt.distributed.DistNeighborLoader(**given) as loader, DistNeighborLoader(**given) as core:
        assert repr(loader) == "DistNeighborLoader()"
        assert (loader.batch_size, loader.shuffle, loader.collect_features) == (20, True, False)
        assert isinstance(loader, glt.distributed.DistLoader)
        for batch, wanted in zip(loader, core, strict=True):
            store, core_store = (batch, wanted) if kind == "homogeneous" else (batch["user"], wanted["user"])
            assert torch.equal(store.node, core_store.n_id)
            assert torch.equal(store.batch, store.node[: store.batch_size])
            assert torch.equal(store.y, store.node)  # of these graphs
            assert "x" not in store
            assert "y" not in core_store
            if kind == "homogeneous":
                assert batch.num_sampled_nodes.tolist() == wanted.num_sampled_nodes
            else:
                assert batch.num_sampled_nodes["user"].tolist() == core_store.num_sampled_nodes


@pytest.mark.parametrize("mode", MODES)
def test_links_are_turned_and_negatives_strict(job: Job, kind: str, mode: str, directory: Path) -> None:
    edge_type = None if kind == "homogeneous" else BUYS
    links = GRAPHS[kind]().edges[edge_type][:, :60]
    given = {**arguments(kind, mode, directory), "num_neighbors": [3], "collect_features": True}
    given["edge_label_index"] = links if edge_type is None else (edge_type, links)
    strict = NegativeSampling("binary", 1, strict=True)
    with (
        glt.distributed.DistLinkNeighborLoader(neg_sampling="binary", **given) as loader,
        DistLinkNeighborLoader(neg_sampling=strict, **given) as core,
    ):
        for batch, wanted in zip(loader, core, strict=True):
            turned, store = (batch, wanted) if edge_type is None else (batch["item", "rev_buys", "user"], wanted[BUYS])
            assert torch.equal(turned.edge_label_index, store.edge_label_index.flip(0))
            assert torch.equal(turned.edge_label, store.edge_label)


def test_a_text_is_a_path_unless_it_is_a_type(job: Job, kind: str, tmp_path: Path) -> None:
    """Whatever the file is called, alone or in a list."""
    if kind == "typed":
        with glt.distributed.DistNeighborLoader(None, [2], "user", worker_options=MODES["remote"]) as loader:
            assert len(loader.dataset) == GRAPHS[kind]().num_nodes["user"]
        for given in ("usr", str(tmp_path / "nowhere")):
            with pytest.raises(InvalidArgumentError, match=r"input_nodes: expected one of the node types \[.*'user'"):
                glt.distributed.DistNeighborLoader(None, [2], given, worker_options=MODES["remote"])
        none = glt.distributed.RemoteDistSamplingWorkerOptions(server_rank=[])
        with pytest.raises(InvalidArgumentError, match="server_rank: "):
            glt.distributed.DistNeighborLoader(None, [2], "user", worker_options=none)
        return
    path = tmp_path / "seeds.s0"
    torch.save(torch.tensor([7, 3, 5]), path)
    for given in (str(path), [str(path)]):
        options = {"batch_size": 3, "worker_options": MODES["remote"]}
        with glt.distributed.DistNeighborLoader(None, [2], given, **options) as loader:
            assert next(iter(loader)).batch.tolist() == [7, 3, 5]
        with glt.distributed.DistSubGraphLoader(None, given, [2], **options) as loader:
            assert sorted(next(iter(loader)).batch.tolist()) == [3, 5, 7]


def attributes(batch: Any) -> dict[Any, set[str]]:
    """What each store has, of typed batches without those of edge types that were not reached."""
    if not hasattr(batch, "node_types"):
        return {None: {*batch.keys()}}
    reached = [key for key, store in batch.edge_items() if store.edge_index.size(1)]
    return {key: {*batch[key]} - {"edge_attr"} for key in (*batch.node_types, *reached)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("collect_features", [True, False])
def test_links_have_no_labels_of_nodes(job: Job, kind: str, mode: str, directory: Path, collect_features: bool) -> None:
    """GLT's own programs tell triplets by the number of a store's attributes."""
    edge_type = None if kind == "homogeneous" else BUYS
    links = GRAPHS[kind]().edges[edge_type][:, :60]
    given = {**arguments(kind, mode, directory), "num_neighbors": [3], "collect_features": collect_features}
    given["edge_label_index"] = links if edge_type is None else (edge_type, links)
    x = {"x"} if collect_features else set()
    found = {}
    for negatives in ("binary", "triplet"):
        with glt.distributed.DistLinkNeighborLoader(neg_sampling=negatives, **given) as loader:
            found[negatives] = attributes(next(iter(loader)))
    binary, triplets = {"edge_label_index", "edge_label"}, {"src_index", "dst_pos_index", "dst_neg_index"}
    if kind == "homogeneous":
        whole = {"node", "edge_index", "num_sampled_nodes", "num_sampled_edges", "batch_size"} | x
        assert found == {"binary": {None: whole | binary}, "triplet": {None: whole | triplets}}
        return
    links_at = ("item", "rev_buys", "user")
    assert found["binary"]["user"] == {"node"} | x
    assert found["binary"]["item"] - {"x"} == {"node"}
    assert found["binary"][links_at] == {"edge_index", *binary}
    assert found["triplet"]["user"] == {"node", "src_index"} | x
    assert found["triplet"]["item"] - {"x"} == {"node", "dst_pos_index", "dst_neg_index"}
    assert found["triplet"][links_at] == {"edge_index"}


@pytest.mark.parametrize("mode", MODES)
def test_labels_are_those_of_seeds(job: Job, kind: str, mode: str, directory: Path) -> None:
    given = {**arguments(kind, mode, directory), "num_neighbors": [3], "input_nodes": seeds_of(kind)}
    with glt.distributed.DistNeighborLoader(collect_features=True, **given) as loader:
        found = attributes(next(iter(loader)))
    if kind == "homogeneous":
        own = {"node", "batch", "batch_size", "x", "y", "edge_index", "num_sampled_nodes", "num_sampled_edges"}
        assert found == {None: own}
    else:
        assert found["user"] == {"node", "batch", "batch_size", "x", "y"}
        assert found["item"] - {"x"} == {"node"}
        assert found["item", "rev_buys", "user"] == {"edge_index"}


@pytest.mark.parametrize("mode", MODES)
def test_subgraphs_are_ordered(job: Job, kind: str, mode: str, directory: Path) -> None:
    given = {**arguments(kind, mode, directory), "num_neighbors": [3], "input_nodes": seeds_of(kind)}
    with glt.distributed.DistSubGraphLoader(**given) as loader, DistSubGraphLoader(**given) as core:
        for batch, wanted in zip(loader, core, strict=True):
            store, core_store = (batch, wanted) if kind == "homogeneous" else (batch["user"], wanted["user"])
            assert torch.equal(store.node, core_store.n_id.sort().values)
            assert torch.equal(store.node[store.mapping], core_store.n_id[core_store.mapping])
            assert torch.equal(store.y, store.node)
            assert torch.equal(store.batch, core_store.n_id[core_store.mapping])
            if kind == "homogeneous":
                names = {"node", "y", "edge_index", "mapping", "batch", "batch_size", "num_nodes"}
                assert {*batch.keys()} == names


def test_sampler_gives_messages(kind: str, directory: Path) -> None:
    """Those of GLT's channels, with places turned around as there."""
    dataset = load_partitions(directory, 1)[0]
    seeds = NodeSamplerInput(torch.tensor([3, 40, 7]), None if kind == "homogeneous" else "user")
    positional = dataset, [3, 2], True, False, False, "out", True
    sampler = glt.distributed.DistNeighborSampler(*positional, None, False, 2, torch.device("cpu"), 5)
    core = DistNeighborSampler(*positional, seed=5)
    for one in (sampler, core):
        one.start_loop()
    try:
        message, batch = sampler.sample_from_nodes(seeds), core.sample_from_nodes(seeds)
        subgraph = sampler.subgraph(seeds)
    finally:
        for one in (sampler, core):
            one.shutdown_loop()
    node, edge = ("", "") if kind == "homogeneous" else ("user.", "user__buys__item.")
    at = (0, 0) if kind == "homogeneous" else (dataset.get_node_types().index("user"), 0)
    at = (at[0], 0 if kind == "homogeneous" else dataset.schema.edge_types.index(BUYS))
    assert bool(message["#IS_HETERO"]) == (kind != "homogeneous")
    assert torch.equal(message[f"{node}ids"], batch.subgraph.nodes[at[0]])
    assert torch.equal(message[f"{node}batch"], seeds.node)
    assert torch.equal(message[f"{node}nfeats"], batch.node_features[at[0]])
    assert torch.equal(message[f"{node}nlabels"], batch.node_labels[at[0]])
    assert message[f"{node}num_sampled_nodes"].tolist() == list(batch.subgraph.num_sampled_nodes[at[0]])
    assert torch.equal(message[f"{edge}rows"], batch.subgraph.cols[at[1]])
    assert torch.equal(message[f"{edge}cols"], batch.subgraph.rows[at[1]])
    assert torch.equal(message[f"{edge}eids"], batch.subgraph.edge_ids[at[1]])
    assert torch.equal(subgraph[f"{node}ids"][subgraph["#META.mapping"]], seeds.node)


def test_what_travels_is_the_core_s() -> None:
    """A server needs no names of ``glt``: values with other defaults travel as what they are of."""
    config = glt.sampler.SamplingConfig(
        glt.sampler.SamplingType.NODE, [2], 1, True, False, False, True, False, False, "out"
    )
    for value, base in (
        (glt.sampler.NegativeSampling("binary", 2), NegativeSampling),
        (config, SamplingConfig),
        (MODES["remote"], glt.distributed.RemoteDistSamplingWorkerOptions.__mro__[1]),
    ):
        blob = bytearray().join(bytes(part) for part in encode(value).write_parts())
        found = decode_blob(memoryview(blob))
        assert type(found) is base
        assert vars(found) == vars(value)
    assert (config.seed, config.collect_labels) == (0, True)


def test_options_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_effect, "_warned", set())
    with pytest.warns(UserWarning, match="use_all2all: it has no effect here"):
        collocated = glt.distributed.CollocatedDistSamplingWorkerOptions("localhost", 1234, 2, 60, True)
    assert (collocated.rpc_timeout, collocated.prefetch_size) == (60, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpu = torch.device("cpu")
        mp = glt.distributed.MpDistSamplingWorkerOptions(2, cpu, 4, "localhost", "1234", 2, 60, "64MB", False, True)
        assert (mp.num_workers, mp.channel_size, mp.worker_devices) == (2, "64MB", None)
    gpus = [torch.device("cuda", number) for number in (0, 99)]
    for options in (glt.distributed.RemoteDistSamplingWorkerOptions, glt.distributed.MpDistSamplingWorkerOptions):
        monkeypatch.setattr(no_effect, "_warned", set())
        with pytest.warns(UserWarning, match="worker_devices: it has no effect here"):
            options(num_workers=2, worker_devices=gpus)
    with pytest.raises(InvalidArgumentError, match=r"worker_devices: expected .* got 'tpu'"):
        glt.distributed.MpDistSamplingWorkerOptions(1, "tpu")  # type: ignore[arg-type]


def test_groups_of_gpus_where_there_is_none(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 0)
    monkeypatch.setattr(no_effect, "_warned", set())
    groups = [glt.data.DeviceGroup(0, [0])]
    dataset = glt.distributed.DistDataset()
    with pytest.warns(UserWarning, match="device_group_list: it has no effect here: no GPU is usable"):
        dataset.load(directory, 0, "ZERO_COPY", device_group_list=groups)
    assert dataset.graph is not None
    dataset.load(str(directory), 0, "ZERO_COPY", "COO", True, False, groups)
    with pytest.raises(InvalidArgumentError, match=r"expected .*a GPU that is there"):
        dataset.load(directory, 0, "CUDA", device_group_list=groups, device=0)
    with pytest.raises(InvalidArgumentError, match="device_group_list: expected DeviceGroups"):
        dataset.load(directory, 0, device_group_list=[0])  # type: ignore[list-item]


# --- servers ---------------------------------------------------------------------------------------------------


def exported(number: int) -> int:
    return number + 1


def serve(directory: str, port: int) -> None:
    """A server in the order of GLT's arguments, which exports one more function."""
    dataset = glt.distributed.DistDataset()
    dataset.load(root_dir=directory, partition_idx=0)
    register_function(exported, "exported")
    glt.distributed.init_server(1, 0, dataset, "localhost", port, 1, 4, 60, "servers")
    glt.distributed.wait_and_shutdown_server()


def assert_messages(messages: list[Any], seeds: torch.Tensor) -> None:
    """Of a graph whose labels are ids, seed by seed."""
    assert all(torch.equal(message["nlabels"], message["ids"]) for message in messages)
    assert all(message["nfeats"].size(0) == message["ids"].numel() for message in messages)
    assert torch.equal(torch.cat([message["batch"] for message in messages]), seeds)


def test_producers_give_messages(tmp_path: Path) -> None:
    dataset = load_partitions(write_partitions(GRAPHS["homogeneous"](), tmp_path, "random", 1, "out"), 1)[0]
    seeds = torch.arange(20)
    node = glt.sampler.SamplingType.NODE
    config = glt.sampler.SamplingConfig(node, [2], 8, False, False, False, True, False, False, "out", 4)
    given = dataset, glt.sampler.NodeSamplerInput(seeds), config
    here = glt.distributed.DistCollocatedSamplingProducer(*given, MODES["collocated"], torch.device("cpu"))
    here.init()
    assert_messages([here.sample() for _ in range(3)], seeds)
    with pytest.raises(StopIteration):
        here.sample()
    here.shutdown()
    with glt.channel.ShmChannel(4, "8MB") as channel:
        there = glt.distributed.DistMpSamplingProducer(*given, MODES["mp"], channel)
        there.init()
        there.produce_all()
        assert_messages([channel.recv(timeout_ms=60_000) for _ in range(3)], seeds)
        there.shutdown()


def test_servers_export_functions(tmp_path: Path, port: int) -> None:
    directory = write_partitions(GRAPHS["homogeneous"](), tmp_path, "random", 1, "out")
    with start("tests.distributed.test_glt_loaders.serve", directory=str(directory), port=port) as server:
        glt.distributed.init_client(1, 1, 0, "localhost", port, 4, "clients")
        try:
            ask = glt.distributed.request_server
            assert ask(server_rank=0, func=torch.cuda.device_count) == torch.cuda.device_count()
            assert ask(0, torch.cuda.is_available) == torch.cuda.is_available()
            assert ask(0, "exported", 4) == ask(0, "exported", number=4) == 5
            count = GRAPHS["homogeneous"]().num_nodes[None]
            assert tuple(ask(0, glt.distributed.DistServer.get_edge_size, None, "coo")) == (count, count)
            assert ask(0, DistServer.get_edge_size, None, "coo") == GRAPHS["homogeneous"]().edges[None].size(1)
            with pytest.raises(InvalidArgumentError, match="layout: expected 'coo'"):
                ask(0, glt.distributed.DistServer.get_edge_size, None, "csr")
            role = glt.distributed.get_context().role
            assert glt.distributed.all_gather((role, 0)) == {"clients_0": (glt.distributed.DistRole.CLIENT, 0)}
            config = glt.sampler.SamplingConfig(
                glt.sampler.SamplingType.NODE, [2], 8, False, False, False, True, False, False, "out", 4
            )
            seeds = glt.sampler.NodeSamplerInput(torch.arange(20))
            number = ask(0, glt.distributed.DistServer.create_sampling_producer, seeds, config, MODES["remote"])
            channel = glt.channel.RemoteReceivingChannel(0, number)
            ask(0, glt.distributed.DistServer.start_new_epoch_sampling, number, 0)
            assert_messages([channel.recv() for _ in range(3)], seeds.node)
            with pytest.raises(StopIteration):
                channel.recv()
            torch.save(seeds.node, tmp_path / "seeds.s0")  # of a data set that says None of its node types
            far = glt.distributed.DistNeighborLoader(
                None, [2], str(tmp_path / "seeds.s0"), batch_size=20, worker_options=MODES["remote"]
            )
            assert next(iter(far)).batch.tolist() == seeds.node.tolist()
            with pytest.raises(InvalidArgumentError, match=r"'torch.cuda.*' is not registered on .*register_function"):
                request_server(0, torch.cuda.synchronize)
            with pytest.raises(InvalidArgumentError, match="is not registered; only functions passed to"):
                ask(0, lambda: None)
        finally:
            glt.distributed.shutdown_client()
        server.wait(60)


def serve_many(directory: str, rank: int, port: int) -> None:
    dataset = glt.distributed.DistDataset()
    dataset.load(root_dir=directory, partition_idx=0)
    glt.distributed.init_server(2, rank, dataset, "localhost", port, num_clients=0, is_dynamic=True)
    glt.distributed.wait_and_shutdown_server()


def visit(port: int, rank: int, group: str | None) -> int:
    """A client of a group of two; it leaves before the other one, or after it."""
    glt.distributed.init_client(2, 2, rank, "localhost", port, 4, group, is_dynamic=True)
    loader = glt.distributed.DistNeighborLoader(
        None, [2], torch.arange(4), batch_size=2, worker_options=glt.distributed.RemoteDistSamplingWorkerOptions([rank])
    )
    count = len(list(loader))
    glt.distributed.shutdown_client()
    return count


def test_dynamic_servers_end_with_their_clients(tmp_path: Path, port: int) -> None:
    """When both groups are done, of which each says how many it is; no client waits for another."""
    directory = str(write_partitions(GRAPHS["homogeneous"](), tmp_path, "random", 1, "out"))
    with contextlib.ExitStack() as running:
        servers = [
            running.enter_context(
                start("tests.distributed.test_glt_loaders.serve_many", directory=directory, rank=rank, port=port)
            )
            for rank in range(2)
        ]
        glt.distributed.init_client(2, 1, 0, "localhost", port, 4, "first", is_dynamic=True)
        clients = [
            ("tests.distributed.test_glt_loaders.visit", {"port": port, "rank": rank, "group": None})
            for rank in range(2)
        ]
        assert run_processes(clients, 120) == [2, 2]
        for rank in range(2):  # which waits for this client, of another group
            assert request_server(rank, DistServer.get_dataset_meta)[0] == 1
        glt.distributed.shutdown_client()
        for server in servers:
            server.wait(60)


def test_samplers_of_the_core_are_as_they_were(directory: Path) -> None:
    """``device`` is a keyword of ``glt`` alone."""
    graph = load_partitions(directory, 1)[0].graph
    with pytest.raises(InvalidArgumentError, match="expected the keywords epoch and index"):
        NeighborSampler(graph, [2]).sample_from_nodes(torch.tensor([1]), device="cpu")
