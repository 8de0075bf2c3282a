"""What a partition answers natively is what Python answers: the same values, and the same errors."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.config import RpcSettings
from graphlearn_dist.core import thread_pool
from graphlearn_dist.data import Dataset
from graphlearn_dist.distributed import DistDataset
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.errors import (
    GraphLearnError,
    InvalidArgumentError,
    PartitionFormatError,
    ProtocolError,
    UnknownIdError,
)
from graphlearn_dist.partition import FrequencyPartitioner
from graphlearn_dist.sampler.strategies import METHODS
from tests.support.graphs import (
    MAX_TIME,
    Direction,
    TestGraph,
    random_graph,
    typed_graph,
    with_times,
    with_weights,
)
from tests.support.oracle import load_partitions, write_partitions
from tests.support.python_answers import (
    EdgeCheckRequest,
    FeatureRequest,
    InducedRequest,
    OneHopRequest,
    has_edges,
    induced,
    lookup,
    one_hop,
    owned,
)
from tests.support.queries import (
    ask,
    call,
    has_edges_query,
    hop_query,
    induced_query,
    owned_query,
    rows_query,
)
from tests.unit.partition.graphs import homo_inputs

PARTS = 3
GRAPHS: dict[str, Callable[[], TestGraph]] = {
    "homogeneous": lambda: random_graph(300, 3000, 8, explicit_edge_ids=True),
    "typed": lambda: typed_graph(150, 60, 900, 9),
}
DRAWS = [
    (fanout, (method, replace, times))
    for fanout in (-1, 0, 4)
    for method, replace, times in (
        *((method, False, "ignore") for method in METHODS),
        ("uniform", True, "ignore"),
        ("weighted", True, "before"),
        ("topk", False, "before"),
        ("uniform", False, "latest"),
    )
]


def load(name: str, directory: Path, edge_dir: Direction = "out", **options: Any) -> list[DistDataset]:
    graph = with_times(with_weights(GRAPHS[name](), 3, some_zero=True), 4)
    return load_partitions(write_partitions(graph, directory, "random", PARTS, edge_dir, **options), PARTS)


@pytest.fixture(scope="module", params=sorted(GRAPHS))
def datasets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[DistDataset]:
    return load(request.param, tmp_path_factory.mktemp("partitions"))


def own_nodes(dataset: DistDataset, edge_type: int) -> torch.Tensor:
    """The nodes that have rows of an edge type here, some of them twice."""
    ids = dataset.row_books()[edge_type].local_ids(dataset.partition_idx)
    return torch.cat([ids.flip(0), ids[::3]])


def request_of(dataset: DistDataset, fanout: int, draw: tuple[str, bool, str], *, trees: bool) -> OneHopRequest:
    """One hop along all edge types, from every node of the partition."""
    types = tuple(range(len(dataset.schema.edge_types)))
    ids = tuple(own_nodes(dataset, edge_type) for edge_type in types)
    return OneHopRequest(
        types,
        ids,
        (fanout,) * len(types),
        tuple(1000 + edge_type for edge_type in types),
        (draw,) * len(types),
        True,
        tuple(torch.arange(len(of_type)) // 7 if trees else None for of_type in ids),
        tuple(None if draw[2] == "ignore" else torch.arange(len(of_type)) % (MAX_TIME + 1) for of_type in ids),
    )


def check_same(actual: list[torch.Tensor | None], expected: list[torch.Tensor | None]) -> None:
    """The same values, in dtypes of as few bytes or fewer."""
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        if theirs is None or ours is None:
            assert ours is theirs
            continue
        assert ours.dtype.itemsize <= theirs.dtype.itemsize
        assert ours.is_floating_point() == theirs.is_floating_point()
        assert torch.equal(ours.to(theirs.dtype), theirs)


def store_of(service: PartitionService, kind: str) -> str:
    """The first store of a kind that has rows here."""
    return next(f"{kind}:{number}" for number in range(9) if service.holds(f"{kind}:{number}"))


# --- the same answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("trees", [False, True])
def test_one_hop(datasets: list[DistDataset], trees: bool, num_threads: int) -> None:
    for dataset in datasets:
        service = PartitionService(dataset, num_threads)
        for fanout, draw in DRAWS:
            request = request_of(dataset, fanout, draw, trees=trees)
            expected = one_hop(service, request)
            assert sum(int(counts.sum()) for counts in expected[::3]) > 0 or fanout == 0
            check_same(ask(service, hop_query(request), len(expected)), expected)
            check_same(call(service, hop_query(request), len(expected)), expected)


def test_ids_travel_in_four_bytes_and_counts_in_one(datasets: list[DistDataset]) -> None:
    service = PartitionService(datasets[0])
    request = request_of(datasets[0], 4, ("uniform", False, "ignore"), trees=True)
    query = hop_query(request)
    num_ids = sum(len(ids) for ids in request.ids)
    assert query.nbytes <= 8 * num_ids + 2 * 64 * len(request.ids)  # ids and trees
    assert len(query.head) < 5 + 40 * len(request.ids)
    answer = ask(service, query, 3 * len(request.ids))
    assert {counts.dtype for counts in answer[::3] if counts is not None} == {torch.uint8}
    assert {ids.dtype for ids in answer[1::3] + answer[2::3] if ids is not None} == {torch.int32}


def test_ids_beyond_four_bytes_stay(tmp_path: Path) -> None:
    ids = torch.tensor([1 << 40, 3])
    query = _C.rows_query(["node_feature:0"], [ids])
    service = PartitionService(load("homogeneous", tmp_path)[0])
    with pytest.raises(UnknownIdError, match=str(1 << 40)):
        ask(service, query, 1)


def test_edge_ids_only_where_asked_for(datasets: list[DistDataset]) -> None:
    service = PartitionService(datasets[1])
    full = request_of(datasets[1], 4, ("uniform", False, "ignore"), trees=False)
    request = OneHopRequest(*(list(vars(full).values())[:5]), False, full.trees, full.times)
    answer = ask(service, hop_query(request), 3 * len(request.ids))
    check_same(answer, one_hop(service, request))
    assert answer[2::3] == [None] * len(request.ids)


def test_has_edges(datasets: list[DistDataset]) -> None:
    for dataset in datasets:
        service = PartitionService(dataset)
        for number, edge_type in enumerate(dataset.schema.edge_types):
            _, source, target = dataset.edges(edge_type)
            row, col = (source, target) if dataset.edge_dir == "out" else (target, source)
            request = EdgeCheckRequest(number, torch.cat([row, row]), torch.cat([col, col.roll(1)]))
            expected = has_edges(service, request)[0]
            assert 0 < int(expected.sum()) < len(expected)
            for found in (ask(service, has_edges_query(request), 1)[0], call(service, has_edges_query(request), 1)[0]):
                assert found is not None
                assert found.dtype == torch.uint8
                assert torch.equal(found.bool(), expected)


def test_degrees(datasets: list[DistDataset]) -> None:
    for dataset in datasets:
        service = PartitionService(dataset)
        for number, edge_type in enumerate(dataset.schema.edge_types):
            nodes, (_, source, target) = own_nodes(dataset, number), dataset.edges(edge_type)
            row = source if dataset.edge_dir == "out" else target
            expected = torch.bincount(row, minlength=int(nodes.max()) + 1)[nodes]
            assert int(expected.sum()) > 0
            for way in (ask, call):
                (found,) = way(service, _C.degrees_query(number, nodes), 1)
                assert found is not None
                assert torch.equal(found.long(), expected)
        other = (
            datasets[(dataset.partition_idx + 1) % PARTS].row_books()[0].local_ids((dataset.partition_idx + 1) % PARTS)
        )
        with pytest.raises(UnknownIdError):
            ask(service, _C.degrees_query(0, other[:1]), 1)
        with pytest.raises(InvalidArgumentError, match="edge_types: expected less than"):
            ask(service, _C.degrees_query(9, nodes), 1)


@pytest.mark.parametrize("with_edge_ids", [False, True])
def test_induced(datasets: list[DistDataset], with_edge_ids: bool) -> None:
    for dataset in datasets:
        schema, service = dataset.schema, PartitionService(dataset)
        members = tuple(
            torch.randperm(count, generator=torch.Generator().manual_seed(5))[: count // 2]
            for count in schema.num_nodes
        )
        types = tuple(range(len(schema.edge_types)))
        member_types = tuple(neighbor_type for _, neighbor_type in schema.edge_specs)
        ids = tuple(own_nodes(dataset, edge_type) for edge_type in types)
        request = InducedRequest(types, ids, member_types, members, with_edge_ids)
        expected = induced(service, request)
        assert any(cols is not None and cols.numel() for cols in expected[1::3])
        check_same(ask(service, induced_query(request), len(expected)), expected)
        check_same(call(service, induced_query(request), len(expected)), expected)


def rows_requests(dataset: DistDataset, service: PartitionService) -> Iterator[FeatureRequest]:
    """All rows of the partition, by store; then those of all stores at once."""
    books = {name: book for name, book in dataset.store_books().items() if service.holds(name)}
    own = {name: book.local_ids(dataset.partition_idx).flip(0) for name, book in books.items()}
    for name, ids in own.items():
        yield FeatureRequest((name,), (ids[::2].contiguous(),))
    yield FeatureRequest(tuple(own), tuple(own.values()))


@pytest.mark.parametrize("own_feature_books", [False, True])
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_rows(name: str, own_feature_books: bool, tmp_path: Path) -> None:
    for dataset in load(name, tmp_path, own_feature_books=own_feature_books):
        service, count = PartitionService(dataset, 2), 0
        for request in rows_requests(dataset, service):
            expected = lookup(service, request)
            for actual in (ask, call):
                found = actual(service, rows_query(request), len(expected))
                for ours, theirs in zip(found, expected, strict=True):
                    assert ours is not None
                    assert ours.dtype == theirs.dtype
                    assert torch.equal(ours, theirs)
            count += 1
        assert count >= 4


@pytest.mark.parametrize("own_feature_books", [False, True])
def test_owned(own_feature_books: bool, tmp_path: Path) -> None:
    for dataset in load("homogeneous", tmp_path, own_feature_books=own_feature_books):
        service = PartitionService(dataset)
        books = dataset.store_books()
        edge_ids = torch.arange(0, books["edge_feature:0"].num_ids)
        if own_feature_books:
            edge_ids = edge_ids[:500]
        request = FeatureRequest(
            ("edge_feature:0", "node_feature:0"), (edge_ids, torch.arange(dataset.schema.num_nodes[0]))
        )
        expected = owned(service, request)
        assert all(0 < int(owned.sum()) < len(owned) for owned in expected)
        for actual in (ask, call):
            found = actual(service, owned_query(request), 2)
            for ours, theirs in zip(found, expected, strict=True):
                assert ours is not None
                assert ours.dtype == torch.uint8
                assert torch.equal(ours.bool(), theirs)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_rows_come_as_they_are_stored(dtype: torch.dtype) -> None:
    dataset = Dataset()
    rows = (torch.arange(120).reshape(20, 2, 3) % 5).to(dtype)
    dataset.init_graph(torch.stack([torch.arange(20), torch.arange(20).roll(1)]))
    dataset.init_node_features(rows, dtype=None)
    service = PartitionService(DistDataset.from_dataset(dataset))
    request = FeatureRequest(("node_feature:0",), (torch.tensor([3, 3, 19, 0]),))
    found = ask(service, rows_query(request), 1)[0]
    assert found is not None
    assert found.dtype == dtype
    assert torch.equal(found.view(torch.uint8), rows[request.ids[0]].contiguous().view(torch.uint8))


def test_rows_of_others_where_it_keeps_copies(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = [torch.rand(53, generator=generator) for _ in range(PARTS)]
    directory = FrequencyPartitioner(tmp_path / "g", PARTS, probs=probs, cache_ratio=0.3, **homo_inputs()).partition()
    dataset = DistDataset()
    dataset.load(directory, 1)
    service = PartitionService(dataset)
    copied = dataset.row_caches()["node_feature:0"].ids
    own = dataset.store_books()["node_feature:0"].local_ids(1)
    for ids in (copied, torch.cat([own, copied.flip(0), own[:3]]), own):
        request = FeatureRequest(("node_feature:0",), (ids,))
        found = ask(service, rows_query(request), 1)[0]
        assert found is not None
        assert torch.equal(found, homo_inputs()["node_feat"][ids].to(found.dtype))
        assert torch.equal(found, lookup(service, request)[0])
    nowhere = [id for id in range(53) if id not in set(own.tolist()) | set(copied.tolist())]
    for wrong in (nowhere[:2], [1, 53], [-1]):
        both_refuse(service, FeatureRequest(("node_feature:0",), (torch.tensor([*own[:2], *wrong]),)))


def test_nothing_is_asked_for_at_all(datasets: list[DistDataset]) -> None:
    service = PartitionService(datasets[0])
    nothing = torch.empty(0, dtype=torch.int64)
    assert ask(service, _C.hop_query([], True), 0) == []
    assert ask(service, _C.rows_query([], []), 0) == []
    draw = ("uniform", False, "ignore")
    request = OneHopRequest((0,), (nothing,), (3,), (1,), (draw,), True, (None,), (None,))
    check_same(ask(service, hop_query(request), 3), one_hop(service, request))
    check_same(call(service, hop_query(request), 3), one_hop(service, request))
    found = ask(service, rows_query(FeatureRequest((store_of(service, "node_feature"),), (nothing,))), 1)[0]
    assert found is not None
    assert found.shape == (0, 2)


def test_many_threads_ask_at_once(datasets: list[DistDataset]) -> None:
    """Counted weights and the index of edge ids are made by whoever comes first, while others wait."""
    dataset = datasets[2]
    expected_from = PartitionService(dataset)
    requests = [request_of(dataset, fanout, draw, trees=False) for fanout, draw in DRAWS]
    expected = [one_hop(expected_from, request) for request in requests]
    store = store_of(expected_from, "edge_feature")
    edges = FeatureRequest((store,), (dataset.store_books()[store].local_ids(2),))
    expected_rows = lookup(expected_from, edges)[0]
    dataset_again = DistDataset.from_ipc_handle(dataset.share_ipc())
    service, failed = PartitionService(dataset_again, 2), []
    barrier = threading.Barrier(4)

    def work() -> None:
        try:
            barrier.wait()
            found = ask(service, rows_query(edges), 1)[0]
            assert found is not None
            assert torch.equal(found, expected_rows)
            for request, wanted in zip(requests, expected, strict=True):
                check_same(ask(service, hop_query(request), len(wanted)), wanted)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failed
    assert not any(thread.is_alive() for thread in threads)


def test_a_service_is_freed_with_its_native_part(tmp_path: Path) -> None:
    service = PartitionService(load("homogeneous", tmp_path)[0])
    ask(service, _C.rows_query(["edge_feature:0"], [torch.empty(0, dtype=torch.int64)]), 1)
    gone = weakref.ref(service)
    gc.disable()
    try:
        del service
        assert gone() is None
    finally:
        gc.enable()


# --- the same errors ---------------------------------------------------------------------------------------------


def both_refuse(service: PartitionService, request: Any) -> GraphLearnError:
    """The error of a request, which is of one class and has one text however it is asked."""
    ways: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
        OneHopRequest: (one_hop, hop_query),
        InducedRequest: (induced, induced_query),
        EdgeCheckRequest: (has_edges, has_edges_query),
        FeatureRequest: (lookup, rows_query),
    }
    in_python, encoded = ways[type(request)]
    with pytest.raises(GraphLearnError) as expected:
        in_python(service, request)
    for actual in (ask, call):
        with pytest.raises(GraphLearnError) as found:
            actual(service, encoded(request), 1)
        assert type(found.value) is type(expected.value)
        assert str(found.value) == str(expected.value)
    return expected.value


def test_hops_that_are_refused(datasets: list[DistDataset]) -> None:
    service, book = PartitionService(datasets[0]), datasets[0].row_books()[0]
    own, other = book.local_ids(0)[:2].tolist(), int(book.local_ids(1)[0])

    def hop(ids: list[int], *, edge_type: int = 0, fanout: int = 2, draw: Any = ("uniform", False, "ignore")) -> Any:
        tensor = torch.tensor(ids)
        return OneHopRequest((edge_type,), (tensor,), (fanout,), (1,), (draw,), False, (None,), (None,))

    for bad in (other, -1, book.num_ids, 1 << 40):
        assert isinstance(both_refuse(service, hop([*own, bad])), UnknownIdError)
    for edge_type in (-1, len(datasets[0].schema.edge_types), 1 << 30):
        assert "edge_types" in str(both_refuse(service, hop(own, edge_type=edge_type)))
    for fanout in (-2, 1 << 31, -(1 << 63)):
        assert "num_neighbors" in str(both_refuse(service, hop(own, fanout=fanout)))
    for draw in (("labor", True, "ignore"), ("topk", True, "ignore"), ("weighted", False, "latest")):
        assert type(both_refuse(service, hop(own, draw=draw))) is InvalidArgumentError
    assert "seeds have no times" in str(both_refuse(service, hop(own, draw=("uniform", False, "before"))))


def test_draws_that_the_graph_cannot_answer(tmp_path: Path) -> None:
    graph = random_graph(60, 300, 1)
    service = PartitionService(load_partitions(write_partitions(graph, tmp_path, "range", 2, "out"), 2)[0])
    for draw, text in (
        (("weighted", False, "ignore"), "the graph has none"),
        (("topk", False, "ignore"), "the graph has none"),
        (("uniform", False, "before"), "graph has no times"),
    ):
        times = None if draw[2] == "ignore" else torch.tensor([3])
        request = OneHopRequest((0,), (torch.tensor([1]),), (2,), (1,), (draw,), False, (None,), (times,))
        assert text in str(both_refuse(service, request))


def test_other_queries_that_are_refused(datasets: list[DistDataset]) -> None:
    dataset, service = datasets[0], PartitionService(datasets[0])
    own = dataset.row_books()[0].local_ids(0)[:2]
    other = int(dataset.row_books()[0].local_ids(1)[0])
    beyond = dataset.schema.num_nodes[dataset.schema.edge_specs[0][1]]
    assert isinstance(both_refuse(service, EdgeCheckRequest(0, torch.tensor([other]), own[:1])), UnknownIdError)
    assert isinstance(both_refuse(service, EdgeCheckRequest(0, own, torch.tensor([0, beyond]))), UnknownIdError)
    assert isinstance(both_refuse(service, EdgeCheckRequest(9, own, own)), InvalidArgumentError)
    for ids, members, edge_type in ((own, beyond, 0), (torch.tensor([other]), 0, 0), (own, 0, 9)):
        wrong = InducedRequest((edge_type,), (ids,), (0,), (torch.tensor([members]),), True)
        both_refuse(service, wrong)
    for store in ("node_feature:7", "it's", "", "edge_feature:0 "):
        assert "stores: expected one of ['" in str(both_refuse(service, FeatureRequest((store,), (own,))))
    stores = [store_of(service, kind) for kind in ("node_feature", "node_label", "edge_feature")]
    for store in stores:
        for bad in (-1, 1 << 40):
            request = FeatureRequest((store,), (torch.tensor([bad]),))
            assert isinstance(both_refuse(service, request), UnknownIdError)
    edges, theirs = (one.store_books()[stores[2]].local_ids(p)[:2] for p, one in enumerate(datasets[:2]))
    wrong_edge = both_refuse(service, FeatureRequest((stores[2],), (torch.cat([edges, theirs]),)))
    assert "is not one of partition 0" in str(wrong_edge)


def test_rows_that_only_others_have(tmp_path: Path) -> None:
    dataset = load("typed", tmp_path)[0]
    service = PartitionService(dataset)
    missing = next(name for name in dataset.store_books() if not service.holds(name))
    error = both_refuse(service, FeatureRequest((missing,), (torch.empty(0, dtype=torch.int64),)))
    assert isinstance(error, PartitionFormatError)
    with pytest.raises(PartitionFormatError, match="has no such rows"):
        ask(service, _C.owned_query([missing], [torch.empty(0, dtype=torch.int64)]), 1)


def test_a_member_type_that_is_not_there(datasets: list[DistDataset]) -> None:
    own = datasets[0].row_books()[0].local_ids(0)[:1]
    for member_type in (-1, 1, 1 << 30):
        with pytest.raises(InvalidArgumentError, match=f"member_types: expected less than 1, got {member_type}"):
            ask(PartitionService(datasets[0]), _C.induced_query([(0, member_type, own)], [own], False), 3)


def test_names_of_stores_that_are_no_text(datasets: list[DistDataset]) -> None:
    """A stranger's name is shown in letters that every message can have, and not at any length."""
    service = PartitionService(datasets[0])
    query = _C.rows_query(["s\n\u00e9" + "x" * 5000], [torch.tensor([1])])
    with pytest.raises(InvalidArgumentError, match=r"got 's\\x0a\\xc3\\xa9x+\.\.\.'") as error:
        ask(service, query, 1)
    assert len(str(error.value)) < 1000


def test_damaged_files(tmp_path: Path) -> None:
    """What is wrong in files is found where it is read, and named alike."""
    graph = with_weights(random_graph(60, 400, 1), 2, some_zero=False)
    directory = write_partitions(graph, tmp_path, "range", 2, "out")
    dataset = load_partitions(directory, 2)[0]
    dataset.graphs()[None].topo.indptr[7] = 1 << 40
    service = PartitionService(dataset)
    for draw in (("uniform", False, "ignore"), ("weighted", False, "ignore")):
        request = OneHopRequest((0,), (torch.tensor([6]),), (2,), (1,), (draw,), False, (None,), (None,))
        assert isinstance(both_refuse(service, request), PartitionFormatError)
    members = torch.arange(20)
    damaged = both_refuse(service, InducedRequest((0,), (torch.tensor([6]),), (0,), (members,), False))
    assert isinstance(damaged, PartitionFormatError)


def test_damaged_edge_ids(tmp_path: Path) -> None:
    dataset = load("homogeneous", tmp_path)[0]
    ids = dataset.store_books()["edge_feature:0"].ids_at_hand(0)  # type: ignore[attr-defined]
    ids[1] = ids[0]
    service = PartitionService(dataset)
    request = FeatureRequest(("edge_feature:0",), (ids[:1].clone(),))
    assert isinstance(both_refuse(service, request), PartitionFormatError)
    assert isinstance(both_refuse(service, request), PartitionFormatError)  # and again: nothing half made is kept


def test_answers_that_would_be_too_large(datasets: list[DistDataset]) -> None:
    """A small question has no huge answer: hubs asked for many times, or drawn from with replacement."""
    dataset = datasets[0]
    graph = dataset.graphs()[dataset.schema.edge_types[0]]
    row = int(graph.topo.degrees.argmax())
    hub = dataset.row_books()[0].local_ids(0)[row]
    book, edges = dataset.row_books()[0], [(graph.graph_handler, dataset.row_books()[0].native, None)]
    rows = _C.RowStore([torch.zeros(book.partition_size(), 16)])
    stores = [("node_feature:0", book.native, None, rows, None)]
    small = _C.PartitionServer(0, edges, stores, thread_pool(1), 4096)

    class Small:
        native = small

    times = 4096 // int(graph.topo.degrees[row])
    few, many = hub.repeat(2), hub.repeat(4 * times + 64)
    uniform = _C.DrawMethod()
    replaced = _C.DrawMethod("uniform", True)
    every = torch.arange(dataset.schema.num_nodes[dataset.schema.edge_specs[0][1]])
    for ids, expected in ((few, nullcontext()), (many, pytest.raises(InvalidArgumentError, match="in one answer"))):
        outcome: AbstractContextManager[Any] = expected
        with outcome:
            ask(Small, _C.hop_query([(0, ids, -1, uniform, 1, None, None)], False), 3)  # type: ignore[arg-type]
        with outcome:
            ask(Small, _C.induced_query([(0, 0, ids)], [every], True), 3)  # type: ignore[arg-type]
        with outcome:
            ask(Small, _C.rows_query(["node_feature:0"], [ids]), 1)  # type: ignore[arg-type]
        with outcome:
            ask(Small, _C.rows_query(["node_feature:0"] * len(ids), [hub[None]] * len(ids)), len(ids))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="num_neighbors: expected at most 1024 neighbors in one answer"):
        ask(Small, _C.hop_query([(0, few, (1 << 31) - 1, replaced, 1, None, None)], False), 3)  # type: ignore[arg-type]
    assert RpcSettings.max_payload_bytes == 4 << 30  # what services allow


def test_rows_that_python_gathers() -> None:
    """As rows in the memory of a GPU are; what it raises arrives as the core's own errors do."""
    rows = torch.arange(40.0).reshape(20, 2)
    book = _C.PartitionBook.range(torch.tensor([0, 20]))
    seen = []

    def gather(wanted: Any) -> torch.Tensor:
        seen.append(torch.from_dlpack(wanted))
        if int(seen[-1][0]) == 7:
            raise UnknownIdError("ids: row 7 is gone")
        if int(seen[-1][0]) == 8:
            raise OSError("no such device")
        return rows[seen[-1]]

    class Service:
        native = _C.PartitionServer(0, [], [("x", book, None, (gather, 8), None)], thread_pool(1), 1024)

    found = ask(Service, _C.rows_query(["x"], [torch.tensor([3, 1])]), 1)[0]  # type: ignore[arg-type]
    assert found is not None
    assert found.tolist() == [[6, 7], [2, 3]]
    with pytest.raises(UnknownIdError, match="ids: row 7 is gone"):
        ask(Service, _C.rows_query(["x"], [torch.tensor([7])]), 1)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="OSError: no such device"):
        ask(Service, _C.rows_query(["x"], [torch.tensor([8])]), 1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="in one answer"):
        ask(Service, _C.rows_query(["x"], [torch.zeros(129, dtype=torch.int64)]), 1)  # type: ignore[arg-type]


# --- what is no query ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", [b"", b"\x90", b"\xc0", b"\x93\x00\xc2", b"\x92\x07\x90", b"\xdf\xff\xff\xff\xff"])
def test_bytes_that_are_no_query(datasets: list[DistDataset], head: bytes) -> None:
    service = PartitionService(datasets[0])
    with pytest.raises(ProtocolError):
        service.native.answer(head)
    with pytest.raises(ProtocolError):
        service.query(torch.tensor(list(head), dtype=torch.uint8), torch.empty(0, dtype=torch.uint8))


def test_a_payload_of_another_length(datasets: list[DistDataset]) -> None:
    service = PartitionService(datasets[0])
    query = _C.rows_query(["node_label:0"], [torch.arange(20)])
    for payload in (None, bytes(64), bytes(192)):
        with pytest.raises(ProtocolError, match="query: "):
            service.native.answer(query.head, payload)


def test_a_payload_may_begin_anywhere(datasets: list[DistDataset]) -> None:
    dataset, service = datasets[0], PartitionService(datasets[0])
    store = store_of(service, "node_feature")
    ids = dataset.store_books()[store].local_ids(0)[:9]
    query = _C.rows_query([store], [ids])
    (segment,) = query.payload()
    memory = bytearray(1 + 64)
    memory[1 : 1 + len(memoryview(segment))] = memoryview(segment)
    head, (rows,), nbytes = service.native.answer(query.head, memoryview(memory)[1:])
    found = torch.frombuffer(rows, dtype=torch.float32).reshape(9, 2)
    assert torch.equal(found, lookup(service, FeatureRequest((store,), (ids,)))[0])
    assert (nbytes, len(head)) == (128, 5)


def test_arguments_of_another_kind() -> None:
    with pytest.raises(InvalidArgumentError, match="ids: expected a tensor, got list"):
        _C.rows_query(["x"], [[1, 2]])
    with pytest.raises(InvalidArgumentError, match="ids: expected dtype int32 or int64"):
        _C.rows_query(["x"], [torch.zeros(3)])
    with pytest.raises(InvalidArgumentError, match="ids: expected some for each of 2 stores, got 1"):
        _C.rows_query(["x", "y"], [torch.zeros(3, dtype=torch.int64)])
    with pytest.raises(InvalidArgumentError, match="too many parts"):
        _C.rows_query(["x" * 100] * 1000, [torch.zeros(1, dtype=torch.int64)] * 1000)
    with pytest.raises(ProtocolError, match="answer: expected a list of 2, got one of 0"):
        _C.decode_answer(b"\x90", None, 2)
