"""Ranks that hold slices write, array by array, what RandomPartitioner writes from the whole graph."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist.distributed import (
    DistRandomPartitioner,
    init_rpc,
    init_worker_group,
    rpc_is_initialized,
    shutdown_rpc,
)
from graphlearn_dist.distributed.dist_context import _reset_context
from graphlearn_dist.errors import (
    GraphLearnError,
    InvalidArgumentError,
    NotInitializedError,
    StorageError,
    UnknownIdError,
)
from graphlearn_dist.partition import RandomPartitioner, load_partition_layout, verify
from graphlearn_dist.partition.storage import ArrayWriter
from graphlearn_dist.utils.common import get_free_port
from tests.support.processes import assert_nothing_left, run_processes, start
from tests.support.worker_groups import DEADLINE_S, member, run_group
from tests.unit.partition.graphs import EDGE_TYPES, hetero_inputs, homo_inputs

HERE = "tests.distributed.test_random_partitioner"
KINDS = ("homo", "hetero", "homo gaps", "hetero gaps")
CASES = [(kind, strategy) for kind in KINDS for strategy in ("by_src", "by_dst")]
NAMES = {"node_feat": "node_feat_ids", "node_labels": "node_label_ids", "edge_feat": "edge_feat_ids"}


# --- slices of a whole graph -----------------------------------------------------------------------------------


def whole_graph(kind: str) -> dict[str, Any]:
    """With gaps, edges have ids of their own, in no order, and there are features of ids that no edge has."""
    inputs = homo_inputs() if kind.startswith("homo") else hetero_inputs()
    pairs = typed(inputs["edge_index"])
    times = {key: torch.arange(pair.shape[1]) * 31 % 50 for key, pair in pairs.items()}
    times.pop(EDGE_TYPES[1], None)  # one type has none
    inputs = {**{name: value for name, value in inputs.items() if name != "node_split"}, "edge_times": bare(times)}
    if "gaps" in kind:
        ids = {key: torch.randperm(n := pair.shape[1], generator=seeded(n)) * 2 + 3 for key, pair in pairs.items()}
        # The last of three ranks knows the ids of a third of the rows, none of which an edge has.
        feats = {
            key: torch.randn(len(rows) * 7 // 2, 2, generator=seeded(1))
            for key, rows in typed(inputs["edge_feat"]).items()
        }
        inputs |= {"edge_ids": bare(ids), "edge_feat": bare(feats)}
    return {**inputs, **attributes_of(inputs)}


def attributes_of(inputs: dict[str, Any]) -> dict[str, Any]:
    """Of two node types and of all edge types, with features and without."""
    ids = {key: torch.arange(p.shape[1]) for key, p in typed(inputs["edge_index"]).items()}
    num_rows = {key: int(own.max()) + 1 for key, own in typed(inputs.get("edge_ids", bare(ids))).items()}
    num_rows |= {key: len(rows) for key, rows in typed(inputs["edge_feat"]).items()}
    edge_attrs = {key: {"sign": torch.arange(n) % 3 > 0, "w": torch.arange(n) * 0.5} for key, n in num_rows.items()}
    counts = typed(inputs["num_nodes"])
    node_attrs = {key: {"pos/x.y": torch.arange(3 * n).view(n, 3)} for key, n in counts.items() if key != "user"}
    constants = {EDGE_TYPES[0]: {"levels": [1, 2]}, None: {"name": "g", "scale": torch.tensor(0.5)}}
    constants = {key: named for key, named in constants.items() if key is None or key in ids}
    return {"node_attrs": bare(node_attrs), "edge_attrs": bare(edge_attrs), "constants": constants}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def typed(data: Any) -> dict[Any, Any]:
    return data if isinstance(data, dict) else {None: data}


def bare(data: dict[Any, Any]) -> Any:
    return data.get(None, data)


def held_by(count: int, rank: int, world_size: int, key: Any = None) -> torch.Tensor:
    """Ids of a rank: no range, no order, and not those of the partition that it will hold. Rank 0 has nothing of the
    last edge type, where there is another rank."""
    ids = torch.randperm(count, generator=seeded(count))
    holder = ids * 7 % world_size
    if key == EDGE_TYPES[2]:
        holder[holder == 0] = world_size - 1
    return ids[holder == rank]


def slice_of(inputs: dict[str, Any], rank: int, world_size: int) -> dict[str, Any]:
    """What one rank brings of a whole graph."""
    pairs = typed(inputs["edge_index"])
    edges = {key: held_by(pair.shape[1], rank, world_size, key) for key, pair in pairs.items()}
    edges = {key: places for key, places in edges.items() if key is None or len(places)}
    positions = {key: torch.arange(pair.shape[1]) for key, pair in pairs.items()}
    ids_of = typed(inputs.get("edge_ids", bare(positions)))
    made = {
        "num_nodes": inputs["num_nodes"],
        "edge_index": bare({key: pairs[key][:, places] for key, places in edges.items()}),
        "edge_ids": bare({key: ids_of[key][places] for key, places in edges.items()}),
    }
    for name in ("edge_weights", "edge_times"):
        given = typed(inputs[name])
        made[name] = bare({key: given[key][ids] for key, ids in edges.items() if key in given})
    for name, ids_name in NAMES.items():
        ids = {key: held_by(len(rows), rank, world_size) for key, rows in typed(inputs[name]).items()}
        made[name] = bare({key: rows[ids[key]] for key, rows in typed(inputs[name]).items()})
        made[ids_name] = bare(ids)
    for name, ids_name in (("node_attrs", "node_attr_ids"), ("edge_attrs", "edge_attr_ids")):
        columns = inputs[name] if len(pairs) > 1 else {None: inputs[name]}
        columns = {key: named for key, named in columns.items() if name == "node_attrs" or key in edges}
        ids = {key: held_by(len(next(iter(named.values()))), rank, world_size, key) for key, named in columns.items()}
        made[name] = bare({key: {n: rows[ids[key]] for n, rows in named.items()} for key, named in columns.items()})
        made[ids_name] = bare(ids)
    return {**made, "constants": inputs["constants"]}


# --- what the processes run ------------------------------------------------------------------------------------


def partition(rank: int, world_size: int, port: int, fd: int, directory: str) -> None:
    """Partitions the slices of this rank, a directory for each kind of graph and strategy."""
    with member(rank, world_size, port, fd):
        for kind, strategy in CASES:
            options = {"edge_assign_strategy": strategy, "chunk_size": 17, "seed": 5}
            own = slice_of(whole_graph(kind), rank, world_size)
            DistRandomPartitioner(f"{directory}/{kind}-{strategy}", **own, **options).partition()


def partition_own_disk(rank: int, world_size: int, port: int, fd: int, directory: str) -> None:
    """As on machines of their own: each rank writes somewhere else, and holds another partition than its rank."""
    own = slice_of(whole_graph("homo"), rank, world_size)
    with member(rank, world_size, port, fd):
        index = (rank + 1) % world_size
        DistRandomPartitioner(f"{directory}/{rank}/g", **own, current_partition_idx=index).partition()


def spoil(wrong: str, own: dict[str, Any], options: dict[str, Any]) -> None:
    """What rank 1 does wrong."""
    match wrong:
        case "nodes":
            own["num_nodes"] = 54
        case "seed":
            options["seed"] = 1
        case "partition":
            options["current_partition_idx"] = 0
        case "missing row":
            own["node_feat"], own["node_feat_ids"] = own["node_feat"][1:], own["node_feat_ids"][1:]
        case "double row":
            own["node_feat_ids"][0] = held_by(53, 0, 2)[0]
        case "double edge":
            own["edge_ids"][0] = held_by(400, 0, 2)[0]
        case "edge without feature":
            own["edge_ids"][0] = 400
        case "double edge row":
            own["edge_feat_ids"][0] = held_by(400, 0, 2)[0]
        case "double row of no edge, gaps":  # which nobody keeps
            others, mine = (held_by(1400, holder, 2) for holder in (0, 1))
            own["edge_feat_ids"][int(mine.argmax())] = others.max()
        case "edge row of no id":
            own["edge_feat_ids"][0] = 400
        case "row of another shape":
            own["node_feat"] = own["node_feat"][:, :1]
        case "dtype":
            options["node_feat_dtype"] = torch.float16
        case "constants":
            own["constants"] = {None: {"name": "g", "scale": torch.tensor(0.25)}}
        case "attribute of another dtype":
            own["edge_attrs"]["w"] = own["edge_attrs"]["w"].double()
        case "rows of an attribute":
            own["node_attrs"]["age"] = own["node_feat"]
        case "weights":
            own["edge_weights"] = None


def partition_wrong(rank: int, world_size: int, port: int, fd: int, directory: str) -> list[tuple[str, str]]:
    """The errors that this rank sees where rank 1 does something wrong, one run after the other."""
    errors = []
    with member(rank, world_size, port, fd):
        for wrong in [*WRONG, "nothing"]:
            own, options = slice_of(whole_graph("homo gaps" if "gaps" in wrong else "homo"), rank, world_size), {}
            if rank == 1:
                spoil(wrong, own, options)
            try:
                DistRandomPartitioner(f"{directory}/{wrong}", **own, **options, chunk_size=50).partition()
            except GraphLearnError as error:
                errors.append((type(error).__name__, str(error)))
    return errors


def partition_and_die(rank: int, world_size: int, port: int, fd: int, directory: str) -> str:
    """Rank 1 is killed in the middle; the error of the others."""
    from graphlearn_dist.distributed.partitioning import partition_exchange

    own = slice_of(whole_graph("homo"), rank, world_size)
    init_worker_group(world_size, rank)
    init_rpc("127.0.0.1", port, rpc_timeout=DEADLINE_S, master_fd=fd if rank == 0 else -1)
    if rank == 1:
        partition_exchange.Inbox.call = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    try:
        DistRandomPartitioner(f"{directory}/g", **own).partition()
    except GraphLearnError as error:
        return type(error).__name__
    finally:
        shutdown_rpc(graceful=False)
    return "nothing"


def partition_without_rpc(rank: int, world_size: int, port: int, directory: str) -> bool:
    """The partitioner opens the RPC itself; the end of the process closes it."""
    init_worker_group(world_size, rank)
    own = slice_of(whole_graph("homo"), rank, world_size)
    for name in ("a", "b"):
        DistRandomPartitioner(f"{directory}/{name}", **own, master_addr="127.0.0.1", master_port=str(port)).partition()
    return rpc_is_initialized()


# --- tests -----------------------------------------------------------------------------------------------------


def meta_of(directory: Path) -> dict[str, Any]:
    """META.json, with files by path: checksums of all arrays are in it."""
    meta = json.loads((directory / "META.json").read_text())
    return {**meta, "files": {file["path"]: file for file in meta["files"]}}


def partition_whole(directory: Path, num_parts: int, inputs: dict[str, Any], **options: Any) -> None:
    """On one machine."""
    RandomPartitioner(directory, num_parts, **inputs, **options).partition()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_equal_to_one_machine(tmp_path: Path, world_size: int) -> None:
    run_group(f"{HERE}.partition", world_size, directory=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted("-".join(case) for case in CASES)
    for kind, strategy in CASES:
        made, whole = tmp_path / f"{kind}-{strategy}", tmp_path / f"whole-{kind}-{strategy}"
        partition_whole(whole, world_size, whole_graph(kind), edge_assign_strategy=strategy, seed=5)
        assert meta_of(made) == meta_of(whole)
        verify(made)
        parts = [f"part{p}" for p in range(world_size)]
        assert sorted(path.name for path in made.iterdir()) == ["META.json", "graph_attr", *parts]


def test_machines_with_disks_of_their_own(tmp_path: Path) -> None:
    run_group(f"{HERE}.partition_own_disk", 2, directory=str(tmp_path))
    partition_whole(tmp_path / "whole", 2, whole_graph("homo"))
    for rank in range(2):
        directory = tmp_path / str(rank) / "g"
        assert meta_of(directory) == meta_of(tmp_path / "whole")
        assert sorted(path.name for path in directory.iterdir()) == ["META.json", "graph_attr", f"part{1 - rank}"]
        verify(directory)
        whole = load_partition_layout(tmp_path / "whole").open_partition(1 - rank)
        own = load_partition_layout(directory).open_partition(1 - rank)
        assert torch.equal(own.graphs[None].indices, whole.graphs[None].indices)
        assert torch.equal(own.node_feats[None], whole.node_feats[None])


WRONG = {
    "nodes": ("InvalidArgumentError", "num_nodes: .*_1 has .*54.*53"),
    "seed": ("InvalidArgumentError", "seed: .*_1 has 1, .*_0 0"),
    "partition": ("InvalidArgumentError", r"each of 2 partitions on one rank, got \[0, 0\]"),
    "missing row": ("InvalidArgumentError", "node_feat: expected 53 rows over all ranks, one for each id, got 52"),
    "double row": ("InvalidArgumentError", "node_feat ids.*this row came before"),
    "double edge": ("InvalidArgumentError", "edge_ids: expected distinct ids, got [0-9]+ twice"),
    "edge without feature": ("UnknownIdError", "edge_ids: id 400: expected 0 <= id < 400"),
    "double edge row": ("InvalidArgumentError", "edge_feat ids: expected distinct ids, got [0-9]+ twice"),
    "double row of no edge, gaps": ("InvalidArgumentError", "edge_feat ids: expected distinct ids, got 139[89] twice"),
    "edge row of no id": ("UnknownIdError", "edge_feat_ids: id 400: expected 0 <= id < 400, the number of rows"),
    "row of another shape": ("InvalidArgumentError", "node_feat: .*_1 has rows"),
    "dtype": ("InvalidArgumentError", "node_feat: .*_1 has rows torch.float16"),
    "constants": ("InvalidArgumentError", "constants: .*_1 has others than .*_0"),
    "attribute of another dtype": ("InvalidArgumentError", "edge_attrs: w: .*_1 has rows torch.float64"),
    "rows of an attribute": ("InvalidArgumentError", "node_attrs: age: expected 53 rows over all ranks, .* got 26"),
    "weights": (
        "InvalidArgumentError",
        "edge_weights, edge_times: .*_1 has {.times.: torch.int64}, others {.weights.: torch.float32",
    ),
}


def test_what_is_wrong_on_one_rank_is_raised_on_all(tmp_path: Path) -> None:
    for errors in run_group(f"{HERE}.partition_wrong", 2, directory=str(tmp_path)):
        assert len(errors) == len(WRONG)
        for (name, text), (expected_name, expected_text) in zip(errors, WRONG.values(), strict=True):
            assert name == expected_name
            assert re.search(expected_text, text), text
    assert [path.name for path in tmp_path.iterdir()] == ["nothing"]  # the failed runs left nothing on disk
    verify(tmp_path / "nothing")


def test_a_rank_that_dies(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, fd = listener.getsockname()[1], listener.fileno()
        shared = {"world_size": 3, "port": port, "fd": fd, "directory": str(tmp_path)}
        with contextlib.ExitStack() as stack:
            processes = [
                stack.enter_context(start(f"{HERE}.partition_and_die", pass_fds=[fd], rank=rank, **shared))
                for rank in range(3)
            ]
            assert [processes[rank].wait(DEADLINE_S) for rank in (0, 2)] == ["PeerLostError"] * 2
            assert processes[1].poll() == -signal.SIGKILL
    assert_nothing_left(*(process.pid for process in processes))
    assert not list(tmp_path.iterdir())


def test_it_opens_the_rpc_where_nobody_did(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    shared = {"world_size": 2, "port": port, "directory": str(tmp_path)}
    ranks = [(f"{HERE}.partition_without_rpc", {"rank": rank, **shared}) for rank in range(2)]
    assert run_processes(ranks, DEADLINE_S) == [True, True]
    assert meta_of(tmp_path / "a") == meta_of(tmp_path / "b")


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"edge_index": torch.tensor([[0], [4]])}, UnknownIdError, r"edge_index\[1\]\[0\]=4"),
    ({"edge_index": None}, InvalidArgumentError, r"edge_index: expected \[2, num_edges\], got None"),
    ({"edge_ids": None}, InvalidArgumentError, "edge_ids"),
    ({"edge_ids": torch.tensor([0, 1])}, InvalidArgumentError, "edge_ids: expected 1 rows, one for each edge"),
    ({"node_feat": torch.zeros(2)}, InvalidArgumentError, "node_feat_ids"),
    ({"node_feat": torch.zeros(2), "node_feat_ids": torch.tensor([0, 4])}, UnknownIdError, r"node_feat_ids\[1\]=4"),
    ({"node_feat": torch.zeros(2), "node_feat_ids": torch.tensor([1, 1])}, InvalidArgumentError, "distinct ids, got 1"),
    ({"node_attrs": {"a": torch.zeros(2)}}, InvalidArgumentError, "node_attr_ids: expected"),
    ({"edge_attrs": {"a": torch.zeros(2)}}, InvalidArgumentError, "edge_attrs: a: expected 1 rows"),
    ({"node_attrs": {"user": {"a": torch.zeros(2)}}}, InvalidArgumentError, "node_attrs: unknown type 'user'"),
    ({"constants": {None: {"a": object()}}}, InvalidArgumentError, "constants: a: expected a tensor"),
    ({"edge_assign_strategy": "x"}, InvalidArgumentError, "by_src or by_dst"),
    ({"chunk_size": 0}, InvalidArgumentError, "chunk_size"),
    ({"num_nodes": {"a": 4}}, InvalidArgumentError, "edge_index: expected a dictionary by edge type"),
]


@pytest.fixture
def lone_worker() -> Iterator[None]:
    init_worker_group(1, 0)
    yield
    _reset_context()


@pytest.mark.parametrize(("wrong", "error", "text"), BAD)
@pytest.mark.usefixtures("lone_worker")
def test_input_is_checked(tmp_path: Path, wrong: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {"num_nodes": 4, "edge_index": torch.tensor([[0], [1]]), "edge_ids": torch.tensor([0]), **wrong}
    with pytest.raises(error, match=text):
        DistRandomPartitioner(tmp_path / "g", **given)


def test_it_needs_a_group(tmp_path: Path) -> None:
    given = {"num_nodes": 4, "edge_index": torch.tensor([[0], [1]]), "edge_ids": torch.tensor([0])}
    with pytest.raises(NotInitializedError, match="init_worker_group first, or give num_parts and"):
        DistRandomPartitioner(tmp_path / "g", **given)
    with pytest.raises(InvalidArgumentError, match="partition_idx: expected 0 to 1, got 2"):
        DistRandomPartitioner(tmp_path / "g", **given, num_parts=2, current_partition_idx=2)
    init_worker_group(1, 0)
    try:
        with pytest.raises(NotInitializedError, match="master_addr, master_port"):
            DistRandomPartitioner(tmp_path / "g", **given).partition()
    finally:
        _reset_context()


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    given = {"num_nodes": 4, "edge_index": torch.tensor([[0], [1]]), "edge_ids": torch.tensor([0])}
    address = {"master_addr": "127.0.0.1", "master_port": get_free_port()}
    partitioner = DistRandomPartitioner(tmp_path / "g", **given, **address, num_parts=1, current_partition_idx=0)
    monkeypatch.setattr(ArrayWriter, "append", full)
    monkeypatch.setattr("os.posix_fallocate", full)
    try:
        with pytest.raises(StorageError, match="cannot be written: No space left on device"):
            partitioner.partition()
    finally:
        shutdown_rpc()
        _reset_context()
    assert not list(tmp_path.iterdir())
