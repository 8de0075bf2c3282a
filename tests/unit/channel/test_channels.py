"""Channels of sampled messages."""

from __future__ import annotations

import pickle
import warnings
from multiprocessing import get_context

import pytest
import torch

from graphlearn_dist.channel import ChannelBase, MpChannel, QueueTimeoutError, ShmChannel
from graphlearn_dist.errors import (
    ChannelClosedError,
    ChannelTimeoutError,
    InvalidArgumentError,
    MessageTooLargeError,
)
from graphlearn_dist.utils.device import can_pin
from graphlearn_dist.utils.units import parse_size
from tests.support.waiting import collect

DEADLINE_MS = 20_000.0


def batch(index: int) -> dict[str, torch.Tensor]:
    return {
        "ids": torch.arange(index, index + 5),
        "x": torch.full((index % 7, 3), float(index)),
        "#IS_HETERO": torch.tensor([index % 2], dtype=torch.uint8),
    }


def assert_same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert list(left) == list(right)
    for key, value in left.items():
        assert value.dtype == right[key].dtype
        assert torch.equal(value, right[key]), key


def send_batches(channel: ShmChannel, count: int) -> None:
    for i in range(count):
        channel.send(batch(i), timeout_ms=DEADLINE_MS)


def test_messages_arrive_equal_in_order_and_may_be_kept() -> None:
    channel = ShmChannel(capacity=2, shm_size="64KB")
    kept = []
    for i in range(20):  # ten times the capacity: keeping what was received must not block
        channel.send(batch(i), timeout_ms=0)
        kept.append(channel.recv(timeout_ms=0))
    for i, message in enumerate(kept):
        assert_same(message, batch(i))
    assert channel.empty()
    kept[0]["ids"].add_(1)  # received tensors are the receiver's own
    assert_same(kept[1], batch(1))


def test_is_a_channel_base() -> None:
    assert isinstance(ShmChannel(1, 4096), ChannelBase)
    with pytest.raises(TypeError):
        ChannelBase()  # type: ignore[abstract]


def test_from_another_process() -> None:
    channel = ShmChannel(capacity=4, shm_size="64KB")
    process = get_context("spawn").Process(target=send_batches, args=(channel, 25))
    process.start()
    try:
        for i in range(25):
            assert_same(channel.recv(timeout_ms=DEADLINE_MS), batch(i))
        process.join(20)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join(20)


def test_pickled_channel_is_the_same_queue() -> None:
    channel = ShmChannel(capacity=4, shm_size=8192)
    other = pickle.loads(pickle.dumps(channel))
    other.send(batch(3))
    assert not channel.empty()
    assert channel.pending == 1
    assert channel.capacity_bytes == other.capacity_bytes == 8192
    assert_same(channel.recv(), batch(3))


def test_timeouts_full_empty_and_too_large() -> None:
    channel = ShmChannel(capacity=1, shm_size="64KB")
    with pytest.raises(QueueTimeoutError):
        channel.recv(timeout_ms=10)
    channel.send(batch(1))
    with pytest.raises(ChannelTimeoutError, match="at most 1"):
        channel.send(batch(2), timeout_ms=10)
    with pytest.raises(MessageTooLargeError):
        channel.send({"x": torch.zeros(64 << 10)})


def test_close_drains_then_raises() -> None:
    with ShmChannel(capacity=3, shm_size="64KB") as channel:
        channel.send(batch(1))
    assert channel.closed
    with pytest.raises(ChannelClosedError):
        channel.send(batch(2))
    assert_same(channel.recv(), batch(1))
    with pytest.raises(ChannelClosedError):
        channel.recv()


def test_received_memory_is_recycled() -> None:
    from graphlearn_dist import _C

    channel = ShmChannel(capacity=3, shm_size="4MB")
    message = {"x": torch.zeros(200_000)}
    channel.send(message)
    received = channel.recv()
    in_use = _C.pool_stats()["in_use_bytes"]
    for _ in range(10):
        channel.send(message)
        received = channel.recv()
    collect()
    assert _C.pool_stats()["in_use_bytes"] <= in_use
    assert received["x"].numel() == 200_000


@pytest.mark.parametrize("capacity", [0, -1, True, 1.5, "8"])
def test_bad_capacity(capacity: object) -> None:
    with pytest.raises(InvalidArgumentError, match="capacity"):
        ShmChannel(capacity)  # type: ignore[arg-type]


def test_pin_memory() -> None:
    """Without a GPU a warning says once that nothing changes."""
    channel, has_gpu = ShmChannel(capacity=1, shm_size="64KB"), torch.cuda.is_available()
    can_pin.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        channel.pin_memory()
        channel.pin_memory()
    assert [str(warning.message).split(":")[0] for warning in caught] == ([] if has_gpu else ["pin_memory"])
    sent = batch(3)
    channel.send(sent)
    received = channel.recv()
    assert received["x"].is_pinned() == has_gpu
    assert torch.equal(received["x"], sent["x"])
    assert_same(received, batch(3))


def test_mp_channel() -> None:
    channel = MpChannel(maxsize=1)
    try:
        with pytest.raises(ChannelTimeoutError):
            channel.recv(timeout=0.01)
        channel.send(batch(4))
        with pytest.raises(ChannelTimeoutError):
            channel.send(batch(5), timeout=0.01)
        assert_same(channel.recv(timeout=20), batch(4))
    finally:
        channel.close()


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("64MB", 64 << 20), ("1.5 GiB", 3 << 29), ("4096", 4096), ("2k", 2048), (7, 7), ("1tb", 1 << 40), ("10 B", 10)],
)
def test_parse_size(text: str | int, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "MB", "64XB", "-1", "1e3", 0, -5, True, None, 1.5, "0.1", pytest.param("9" * 400, id="huge")]
)
def test_parse_size_refuses(text: object) -> None:
    with pytest.raises(InvalidArgumentError, match="channel_size"):
        parse_size(text, name="channel_size")  # type: ignore[arg-type]
