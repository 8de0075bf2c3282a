"""Which rows GPUs hold: the plan, carried out with rows that stay on the host, and what is pinned."""

from __future__ import annotations

import copy
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import _C
from graphlearn_dist.data import Dataset, DeviceGroup, Feature, UnifiedTensor, shared_memory
from graphlearn_dist.data.device import pinned_memory, placed_rows
from graphlearn_dist.data.device.device_group import group_of
from graphlearn_dist.data.device.device_rows import DeviceRows
from graphlearn_dist.data.device.pinned_memory import pin
from graphlearn_dist.data.device.placed_rows import PlacedRows
from graphlearn_dist.data.device.row_placement import place_rows
from graphlearn_dist.data.handles import GpuHandle
from graphlearn_dist.data.reorder import count_neighbors, resolve_hotness, sort_by_in_degree, sort_rows
from graphlearn_dist.errors import CudaError, InvalidArgumentError, UnknownIdError
from graphlearn_dist.loader import NeighborLoader, count_nodes
from graphlearn_dist.partition.partition_book import OffsetId2Index
from tests.support.graphs import analytic_edges

HOST = torch.device("cpu")
NUM_ROWS = 41
ROWS = torch.arange(NUM_ROWS * 3.0).view(NUM_ROWS, 3)
HOTNESS = (torch.arange(NUM_ROWS) * 7 % NUM_ROWS).double()
TABLE = torch.tensor([5, -1, 0, 40, 40, 17, 99])
GROUPS: list[tuple[int, ...]] = [(0,), (2, 0, 1), (1, 3, 2, 0)]


def gathered(group: tuple[int, ...], ratio: float, hotness: Any, table: Any) -> tuple[DeviceRows, dict[int, list[Any]]]:
    """The rows as a group of imagined GPUs gathers them, and what was brought to each of them."""
    brought: dict[int, list[Any]] = {}

    def put(rows: torch.Tensor, gpu: int) -> torch.Tensor:
        brought.setdefault(gpu, []).append(rows)
        return rows.clone()

    plan = place_rows(NUM_ROWS, ratio, hotness)
    placed = PlacedRows(ROWS, plan, [group], table, put=put)
    parts = placed.parts(group)
    assert len(placed.parts(group)) == len(parts)  # and nothing is brought twice
    return DeviceRows(parts, HOST, plan.row_of_id(len(group), table)), brought


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.3, 1.0])
@pytest.mark.parametrize("hotness", [None, HOTNESS], ids=["first rows", "hottest rows"])
def test_lookups_do_not_depend_on_where_rows_lie(group: tuple[int, ...], ratio: float, hotness: Any) -> None:
    ids = torch.randint(0, NUM_ROWS, (200,), generator=torch.Generator().manual_seed(1))
    found, brought = gathered(group, ratio, hotness, None)
    assert torch.equal(found.gather(ids, torch.float32), ROWS[ids])
    assert torch.equal(found.gather(ids.int(), torch.float16), ROWS[ids].half())
    with pytest.raises(UnknownIdError, match=rf"ids\[1\]: row 41 is outside \[0, {NUM_ROWS}\)"):
        found.gather(torch.tensor([0, NUM_ROWS]), torch.float32)
    # Each GPU of the group has an equal share of the hot rows, once.
    num_hot = round(NUM_ROWS * ratio)
    assert all(len(pieces) == 1 for pieces in brought.values())
    assert set(brought) == set(group)
    sizes = [len(pieces[0]) for pieces in brought.values()]
    assert sum(sizes) == num_hot
    assert max(sizes) - min(sizes) <= 1
    held = {int(row[0]) // 3 for pieces in brought.values() for row in pieces[0]}
    hottest = range(num_hot) if hotness is None else HOTNESS.argsort(descending=True)[:num_hot].tolist()
    assert held == set(hottest)


@pytest.mark.parametrize("hotness", [None, HOTNESS], ids=["first rows", "hottest rows"])
@pytest.mark.parametrize("table", [TABLE, TABLE.int()])
def test_rows_of_ids_come_from_a_table(table: torch.Tensor, hotness: Any) -> None:
    for group in GROUPS:
        found, _ = gathered(group, 0.4, hotness, table)
        ids = torch.tensor([0, 2, 3, 4, 5, 5])
        assert torch.equal(found.gather(ids, torch.float32), ROWS[TABLE[ids]])
        for bad in (1, 6):
            with pytest.raises(UnknownIdError, match=rf"ids\[1\]: id {bad} has no feature row here"):
                found.gather(torch.tensor([0, bad, 7]), torch.float32)
        with pytest.raises(UnknownIdError, match=r"ids\[0\]: row -1 is outside \[0, 7\)"):
            found.gather(torch.tensor([-1]), torch.float32)


def test_hot_rows_are_dealt_by_their_hotness() -> None:
    plan = place_rows(6, 0.7, torch.tensor([1.0, 9, 5, 9, 7, 0]))
    assert plan.hot is not None
    assert plan.hot.tolist() == [1, 3, 4, 2]  # of equals the first
    assert [ROWS[plan.share(place, 3)][:, 0].tolist() for place in range(3)] == [[3.0, 6.0], [9.0], [12.0]]
    assert place_rows(6, 1.0, torch.arange(6)).hot is None  # all of them need no order
    for bad in (torch.ones(5), torch.tensor([0, 0, 0, 0, 0, float("nan")])):
        with pytest.raises(InvalidArgumentError, match=r"hotness: expected finite numbers \[6\]"):
            place_rows(6, 0.5, bad)


def test_groups_are_those_that_can_read_each_other() -> None:
    def can_access(gpu: int, peer: int) -> bool:
        return gpu // 2 == peer // 2

    assert group_of(3, [], can_access) == (3,)
    assert group_of(3, [[0, 1], [2, 3]], can_access) == (2, 3)
    with pytest.raises(InvalidArgumentError, match=r"GPU 1 cannot read the memory of \[2\]"):
        group_of(1, [[0], [1, 2]], can_access)
    with pytest.raises(InvalidArgumentError, match="GPU 3 reads, and is in none of"):
        group_of(3, [[0, 1]], can_access)


def test_what_is_placed_goes_on_where_rows_move() -> None:
    plan = place_rows(NUM_ROWS, 0.5, HOTNESS)
    pieces: list[torch.Tensor] = []

    def put(rows: torch.Tensor, gpu: int) -> torch.Tensor:
        pieces.append(rows.clone())
        return pieces[-1]

    sender = PlacedRows(ROWS, plan, [[0, 1], [2]], put=put)
    handles = sender.share(0)
    assert {group: [handle.open() for handle in held] for group, held in handles.items()} == {
        (0, 1): pieces[:2],
        (2,): pieces[2:],
    }
    assert sender.share(2) == handles
    # Another process opens the pieces of its own group, and brings nothing anywhere.
    receiver = PlacedRows(ROWS.clone(), plan, [[0, 1], [2]], received=handles, put=put)
    receiver.move(ROWS.clone())
    assert [part.data_ptr() for part in receiver.parts((0, 1))[:2]] == [piece.data_ptr() for piece in pieces[:2]]
    assert len(pieces) == 3
    assert PlacedRows(ROWS, place_rows(NUM_ROWS, 0.0)).share(0) == {}


def test_a_handle_is_sent_as_it_was_described() -> None:
    described = (torch.arange, (3,))
    sent = pickle.loads(pickle.dumps(GpuHandle(described=described)))
    assert torch.equal(pickle.loads(pickle.dumps(sent)).open(), torch.arange(3))
    assert torch.equal(pickle.loads(pickle.dumps(GpuHandle(torch.arange(4)))).open(), torch.arange(4))
    tensor = UnifiedTensor(0)
    with pytest.raises(InvalidArgumentError, match="needs a GPU"):
        tensor.from_ipc_handle([None, "no handle"], [torch.ones(2, 3)])
    assert tensor.shape == [2, 3]
    assert tensor.memories == ["host memory"]


# --- what a user asks for ------------------------------------------------------------------------------------------


def test_hotness_by_degree_counts_the_edges_of_all_types() -> None:
    dataset = Dataset(edge_dir="out")
    edges = torch.tensor([[0, 1, 2, 3], [1, 1, 1, 0]])
    dataset.init_graph({("u", "a", "v"): edges, ("v", "b", "v"): edges.flip(0)}, num_nodes={"u": 4, "v": 4})
    topologies = dataset._topologies_to("v")
    assert count_neighbors(topologies, 5).tolist() == [2, 4, 1, 1, 0]
    found = resolve_hotness("degree", topologies, 3)
    assert found is not None
    assert found.tolist() == [2, 4, 1]
    assert resolve_hotness(None, [], 3) is None
    for given, found in (("often", topologies), ("degree", [])):
        with pytest.raises(InvalidArgumentError, match="hotness: expected numbers, or 'degree'"):
            resolve_hotness(given, found, 4)
    with pytest.raises(InvalidArgumentError, match="sort_func: expected rows in the order of ids, and one edge type"):
        sort_rows(ROWS, None, sort_by_in_degree, 0.5, topologies)
    rows, table = sort_rows(torch.arange(4.0)[:, None], None, sort_by_in_degree, 0.0, topologies[:1])
    assert torch.equal(rows[table], torch.arange(4.0)[:, None])


def test_hotness_never_changes_features() -> None:
    dataset = Dataset()
    dataset.init_graph(analytic_edges(NUM_ROWS))
    dataset.init_node_features(ROWS, hotness="degree")
    ids = torch.tensor([4, 0, 40])
    for feature in (
        dataset.node_features,
        Feature(ROWS, hotness=HOTNESS),
        Feature(ROWS, TABLE.clamp(max=40), hotness=torch.ones(7)),
        Feature(ROWS, split_ratio=0.5, with_gpu=False, hotness=HOTNESS),
    ):
        wanted = ids if feature.id2index is None else torch.tensor([0, 2, 3])
        for one in (feature, copy.deepcopy(feature), pickle.loads(pickle.dumps(feature)), feature.share_memory_()):
            expected = ROWS[wanted if feature.id2index is None else TABLE[wanted]]
            assert torch.equal(one[wanted], expected)
            assert torch.equal(one.cpu_get(wanted), expected)
            assert not one.gathers_on_gpu
    with pytest.raises(InvalidArgumentError, match="hotness: expected one number for each id"):
        Feature(ROWS, TABLE, hotness=torch.ones(3))


@pytest.mark.parametrize("typed", [False, True])
def test_hotness_is_counted_in_batches(typed: bool) -> None:
    dataset, edges = Dataset(edge_dir="in"), analytic_edges(NUM_ROWS)
    dataset.init_graph({("n", "e", "n"): edges} if typed else edges)
    dataset.init_node_features({"n": ROWS} if typed else ROWS)
    loader = NeighborLoader(dataset, [2, 2], ("n", torch.arange(20)) if typed else torch.arange(20), batch_size=6)
    expected = torch.zeros(NUM_ROWS, dtype=torch.int64)
    for index, batch in enumerate(loader):
        expected[(batch["n"] if typed else batch).n_id] += 1
        if index == 1:
            first_two = expected.clone()
    for limit, wanted in ((None, expected), (2, first_two)):
        found = count_nodes(loader, limit)
        assert torch.equal(found["n"] if typed else found, wanted)
    assert loader.epoch == 0  # it stays where it is
    dataset.init_node_features({"n": ROWS} if typed else ROWS, hotness=count_nodes(loader))
    with pytest.raises(InvalidArgumentError, match="num_batches: expected 1 to 4, got 5"):
        count_nodes(loader, 5)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 16, 31, 32, 33, 64, 100, 150, 301])
@pytest.mark.parametrize("skipped", [0, 1])
def test_rows_of_any_width_are_copied_wherever_they_begin(dtype: torch.dtype, width: int, skipped: int) -> None:
    """Those that are no whole number of lines of memory are copied line by line, from where each row begins."""
    generator = torch.Generator().manual_seed(2)
    memory = torch.randint(0, 100, (80 * width + skipped,), generator=generator).to(dtype)[skipped:]
    rows = memory.view(80, width)
    ids = torch.randint(0, 80, (300,), generator=generator)
    device_rows = DeviceRows([rows[:50], rows[50:]], HOST)
    assert torch.equal(device_rows.gather(ids, dtype), rows[ids])
    out = torch.full((400, width), 7, dtype=dtype)
    places = torch.randperm(400, generator=generator)[:300]
    device_rows.gather_into(out, places, ids)
    expected = torch.full((400, width), 7, dtype=dtype)
    expected[places] = rows[ids]
    assert torch.equal(out, expected)


@pytest.fixture
def imagined_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Four GPUs whose memory is the host's, of which number 2 is current; and to which of them rows were brought."""
    brought: list[int] = []

    def on(self: PlacedRows, device: torch.device) -> DeviceRows:
        group = group_of(device.index, self._groups)
        return DeviceRows(self.parts(group), HOST, self._placement.row_of_id(len(group), self._id2index))

    def put(rows: torch.Tensor, gpu: int) -> torch.Tensor:
        brought.append(gpu)
        return rows.clone()

    monkeypatch.setattr(PlacedRows, "on", on)
    monkeypatch.setattr(placed_rows, "put_on_gpu", put)
    monkeypatch.setattr(_C, "cuda_device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    return brought


@pytest.mark.parametrize("hotness", [None, HOTNESS], ids=["first rows", "hottest rows"])
@pytest.mark.parametrize("device", [None, 0])
@pytest.mark.parametrize("grouped", [False, True])
def test_features_are_sent_with_their_pieces(
    imagined_gpus: list[int], grouped: bool, device: int | None, hotness: Any
) -> None:
    groups = [DeviceGroup(0, [torch.device("cuda", 0), torch.device("cuda", 1)]), DeviceGroup(1, ["cuda:2", "cuda:3"])]
    ids = torch.tensor([0, 40, 7, 7, 21])
    feature = Feature(ROWS, None, 0.3, groups if grouped else None, device, hotness=hotness)
    assert torch.equal(feature[ids], ROWS[ids])
    own = 2 if device is None else device
    assert imagined_gpus == ([own, own + 1] if grouped else [own])
    sent = feature
    for _ in range(2):  # to another process, and from there to the next
        sent = Feature.from_ipc_handle(pickle.loads(ForkingPickler.dumps(sent.share_ipc())))
        assert sorted(imagined_gpus) == ([0, 1, 2, 3] if grouped else [own])  # once each, all of them by the first
        assert torch.equal(sent[ids], ROWS[ids])
        assert torch.equal(feature[ids], ROWS[ids])
    copied = copy.deepcopy(feature)  # takes rows of its own
    assert torch.equal(copied[ids], ROWS[ids])
    assert len(imagined_gpus) == (6 if grouped else 2)
    with pytest.raises(InvalidArgumentError, match="GPU 0 reads, and is in none of"):
        _ = Feature(ROWS, None, 0.3, groups[1:], 0)[ids]


# --- pinned memory -------------------------------------------------------------------------------------------------

LARGE = 1 << 19  # of float32: what is locked in place


class Locks:
    """Counts what is locked; refuses where it is told to."""

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.locked: list[tuple[int, bool]] = []

    def __call__(self, tensor: torch.Tensor, read_only: bool, device: int) -> str:
        assert device == 0
        if not self.works:
            raise CudaError("cudaHostRegister: operation not supported")
        self.locked.append((tensor.data_ptr(), read_only))
        return "lock"


def copied(tensor: torch.Tensor, device: int) -> torch.Tensor:
    assert device == 0
    return tensor.clone()


def test_memory_is_locked_where_it_lies(tmp_path: Path) -> None:
    private = torch.arange(LARGE, dtype=torch.float32)
    shared = shared_memory.share(private)
    received = shared_memory.from_handle(shared_memory.to_handle(shared))
    file = tmp_path / "rows"
    file.write_bytes(private.numpy().tobytes())
    mapped = torch.from_file(str(file), shared=False, size=LARGE)
    locks = Locks()
    for tensor, is_file in ((private, False), (shared[10:], False), (shared, False), (mapped, True)):
        pinned = pin(tensor, 0, locks, copied)
        assert pinned.tensor.data_ptr() == tensor.data_ptr()
        assert locks.locked[-1] == (tensor.data_ptr(), is_file)
        assert not pinned.is_copy
    # Received pages stay those of the sender, in a mapping that may be locked without a copy of each.
    pinned = pin(received[100:], 0, locks, copied)
    assert locks.locked[-1] == (pinned.tensor.data_ptr(), False)
    assert pinned.tensor.data_ptr() != received[100:].data_ptr()
    shared[100] = -5.0
    assert pinned.tensor[0] == -5.0
    assert pinned.lock.lock == "lock"
    assert pin(pinned.tensor[:9], 0, locks, copied).lock is pinned.lock  # nor is a part of it locked again


def test_a_file_that_is_mapped_to_be_shared_is_copied(tmp_path: Path) -> None:
    file, locks = tmp_path / "rows", Locks()
    file.write_bytes(torch.arange(LARGE, dtype=torch.float32).numpy().tobytes())
    mapped = torch.from_file(str(file), shared=True, size=LARGE)
    assert shared_memory.is_shared_file(mapped)
    assert not shared_memory.is_shared_file(torch.from_file(str(file), shared=False, size=LARGE))
    pinned = pin(mapped, 0, locks, copied)
    assert pinned.is_copy
    assert torch.equal(pinned.tensor, mapped)
    assert locks.locked == []


def test_a_part_of_locked_memory_keeps_it_locked() -> None:
    tensor, locks = torch.ones(2 * LARGE), Locks()
    whole = pin(tensor[:LARGE], 0, locks, copied)
    part = pin(tensor[7 : LARGE - 7], 0, locks, copied)
    assert part.lock is whole.lock
    beyond = pin(tensor[7 : LARGE + 1], 0, locks, copied)
    assert beyond.lock is not whole.lock
    assert len(locks.locked) == 2


def test_memory_stays_locked_while_one_of_its_readers_lives() -> None:
    tensor, locks = torch.ones(LARGE), Locks()
    one, other = (pin(view, 0, locks, copied) for view in (tensor, tensor.view(-1, 2)))
    assert len(locks.locked) == 1
    assert other.tensor.shape == (LARGE // 2, 2)
    del one
    assert pin(tensor, 0, locks, copied).lock is other.lock
    del other
    pin(tensor, 0, locks, copied)
    assert len(locks.locked) == 2


def test_nobody_shares_a_lock_that_is_being_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU reads the pages until the driver has unlocked them."""
    tensor, locks = torch.ones(LARGE), Locks()
    dying = [{(tensor.data_ptr(), tensor.nbytes)}] * 3

    def lock(*how: Any) -> str:
        assert not dying
        return locks(*how)

    monkeypatch.setattr(_C, "locked_ranges", lambda: dying.pop() if dying else set())
    monkeypatch.setattr(_C, "can_gpu_read", lambda tensor, device: bool(dying))
    pinned = pin(tensor, 0, lock, copied)
    assert dying == []
    assert len(locks.locked) == 1
    assert pinned.lock.lock == "lock"


def test_of_a_lock_whose_end_does_not_come_memory_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(LARGE)
    monkeypatch.setattr(_C, "locked_ranges", lambda: {(tensor.data_ptr(), tensor.nbytes)})
    monkeypatch.setattr(pinned_memory, "_LONGEST_UNLOCKING_S", 0.01)
    assert pin(tensor, 0, Locks(), copied).is_copy


def test_memory_between_locked_neighbors_is_not_locked_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU reads its first byte and its last, which lie in pages of theirs."""
    tensor, locks = torch.ones(3 * LARGE + 2), Locks()
    before, between, after = tensor.split((LARGE + 1, LARGE, LARGE + 1))
    held = [pin(part, 0, locks, copied) for part in (before, after)]
    monkeypatch.setattr(_C, "locked_ranges", lambda: {(part.data_ptr(), part.nbytes) for part in (before, after)})
    monkeypatch.setattr(_C, "can_gpu_read", lambda tensor, device: True)
    pinned = pin(between, 0, locks, copied)
    assert locks.locked[-1] == (between.data_ptr(), False)
    assert pinned.lock not in [one.lock for one in held]


def test_memory_that_cannot_be_locked_is_copied() -> None:
    large, small = torch.ones(LARGE), torch.ones(3)
    for tensor, lock in ((large, Locks(works=False)), (small, Locks())):
        pinned = pin(tensor, 0, lock, copied)
        assert pinned.is_copy
        assert torch.equal(pinned.tensor, tensor)
        assert pinned.tensor.data_ptr() != tensor.data_ptr()
        assert lock.locked == []
    assert pin(torch.ones(0), 0, Locks(), copied).tensor.numel() == 0


def test_ids_that_are_rows_need_no_table() -> None:
    """As long as all rows have one: others are no rows of this feature."""
    rows = torch.arange(20.0).view(10, 2)
    for id2index in (None, OffsetId2Index(0), OffsetId2Index(0, 10)):
        gathers = Feature(rows, id2index).for_batches_on(HOST, pin=True)
        assert gathers is not None
        assert torch.equal(gathers.gather(torch.tensor([7, 0]), torch.float32), rows[[7, 0]])
    for id2index in (OffsetId2Index(0, 5), OffsetId2Index(2, 10)):
        assert Feature(rows, id2index).for_batches_on(HOST, pin=True) is None
