"""Answers that are written once, where their reader will find them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.distributed.partitions.reply_region import ReplyRegion
from graphlearn_dist.errors import UnknownIdError
from graphlearn_dist.messages import FeatureReply, FeatureRequest
from graphlearn_dist.rpc.wire.codec import decode
from graphlearn_dist.rpc.wire.encoded import Encoded, release
from tests.support.jobs import NUM_NODES, load, make_partitions

STORES = ("node_feature:0", "node_label:0")


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("halves") / "graph", 2)


def request(ids: list[int], labels: list[int]) -> FeatureRequest:
    return FeatureRequest(STORES, (torch.tensor(ids, dtype=torch.int64), torch.tensor(labels, dtype=torch.int64)))


@pytest.mark.parametrize("ids", [[3, 1, 3], list(range(NUM_NODES // 2)), []])
def test_a_placed_answer_is_the_plain_one(halves: Path, ids: list[int]) -> None:
    dataset = load(halves)
    wanted = request(ids, [5, 0])
    plain = PartitionService(dataset).lookup(wanted)
    placed = PartitionService(dataset, region=ReplyRegion(1 << 20)).lookup(wanted)
    assert isinstance(plain, FeatureReply)
    assert isinstance(placed, Encoded)
    assert placed.place is not None
    decoded = decode(placed.head, placed.segments[0])
    for ours, theirs in zip(decoded.rows, plain.rows, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert plain.rows[1].tolist() == [5, 0]


def test_no_room_means_a_plain_answer_until_slots_come_back(halves: Path) -> None:
    service = PartitionService(load(halves), region=ReplyRegion(3 * 4096))  # its first page is taken
    wanted = request([1], [1])
    answers = [service.lookup(wanted) for _ in range(3)]
    placed = [answer for answer in answers if isinstance(answer, Encoded)]
    assert [isinstance(answer, Encoded) for answer in answers] == [True, True, False]
    release(placed[0])
    again = service.lookup(wanted)
    assert isinstance(again, Encoded)
    assert again.place is not None
    assert placed[0].place is not None
    assert again.place[1] == placed[0].place[1]


def test_a_refused_request_takes_no_room(halves: Path) -> None:
    service = PartitionService(load(halves), region=ReplyRegion(2 * 4096))
    for _ in range(3):
        with pytest.raises(UnknownIdError):
            service.lookup(request([NUM_NODES - 1], []))  # the other partition's
    assert isinstance(service.lookup(request([1], [])), Encoded)
