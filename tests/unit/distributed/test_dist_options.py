"""Options of distributed loaders: what they cannot be is refused by name, before anything starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graphlearn_dist.distributed import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.utils import no_effect

COLLOCATED, MP, REMOTE = (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)


@pytest.mark.parametrize("value", [-1, float("nan"), None, "5", True])
@pytest.mark.parametrize(
    ("options", "name"),
    [(each, "rpc_timeout") for each in (COLLOCATED, MP, REMOTE)]
    + [(MP, "start_timeout"), (REMOTE, "start_timeout"), (REMOTE, "reconnect_timeout")],
)
def test_seconds_that_are_none(options: Any, name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name}: expected .*seconds, got {value!r}$"):
        options(**{name: value})


@pytest.mark.parametrize("value", [float("inf"), 1e10])
@pytest.mark.parametrize("options", [COLLOCATED, MP, REMOTE])
def test_longer_than_the_system_waits(options: Any, value: float) -> None:
    """It was a bare OverflowError in the middle of an epoch."""
    with pytest.raises(InvalidArgumentError, match=r"^rpc_timeout: expected at most .* seconds"):
        options(rpc_timeout=value)


def test_zero_seconds() -> None:
    assert REMOTE(reconnect_timeout=0).reconnect_timeout == 0
    for options, name in ((COLLOCATED, "rpc_timeout"), (MP, "start_timeout")):
        with pytest.raises(InvalidArgumentError, match=f"^{name}: expected a positive"):
            options(**{name: 0})


@pytest.mark.parametrize("options", [COLLOCATED, MP, REMOTE])
def test_all2all_has_no_effect_and_says_so_once(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(no_effect, "_warned", set())
    with pytest.warns(UserWarning, match="use_all2all: it has no effect here") as told:
        made = [options(use_all2all=is_asked) for is_asked in (True, True, False)]
    assert len(told) == 1
    assert made[0] == made[1]


@pytest.mark.parametrize("options", [COLLOCATED, MP, REMOTE])
@pytest.mark.parametrize("wrong", [0, -1, True, "3", 2.0, 65, 1 << 70])
def test_batches_per_message(options: Any, wrong: Any) -> None:
    assert [options(batches_per_message=given).batches_per_message for given in (None, 1, 64)] == [None, 1, 64]
    with pytest.raises(
        InvalidArgumentError, match=f"batches_per_message: expected at (least 1|most 64), got {wrong!r}"
    ):
        options(batches_per_message=wrong)


@pytest.mark.parametrize("value", [0, "two", 1.5, True])
@pytest.mark.parametrize("options", [COLLOCATED, MP, REMOTE])
def test_threads_that_answer(options: Any, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"num_rpc_threads: expected at least 1, got {value!r}"):
        options(num_rpc_threads=value)


@pytest.mark.parametrize("value", ["abc", "", -1, 65536, 80.0])
@pytest.mark.parametrize("options", [COLLOCATED, MP, REMOTE])
def test_ports(options: Any, value: Any) -> None:
    for port in (None, 0, "29500", np.int64(29500)):
        options(master_port=port)
    with pytest.raises(InvalidArgumentError, match=f"master_port: expected a port from 0 to 65535, got {value!r}"):
        options(master_port=value)


def test_sizes() -> None:
    for options, name in ((MP, "channel_size"), (REMOTE, "buffer_size"), (REMOTE, "prefetch_bytes")):
        with pytest.raises(InvalidArgumentError, match=f"^{name}: expected"):
            options(**{name: "12XB"})


@pytest.mark.parametrize("options", [MP, REMOTE])
def test_devices_of_workers(options: Any) -> None:
    cpu = torch.device("cpu")
    for devices in (None, cpu, "cpu", [], [cpu], [cpu] * 3):
        options(num_workers=3, worker_devices=devices)
    with pytest.raises(InvalidArgumentError, match="worker_devices: expected one for each of 3 workers"):
        options(num_workers=3, worker_devices=[cpu] * 2)
    for devices in (torch.device("cuda", 0), [torch.device("cuda", 0)] * 3):
        with pytest.raises(InvalidArgumentError, match="worker_devices: expected CPUs"):
            options(num_workers=3, worker_devices=devices)
    for devices in ("gpu", 3, ["gpu"]):
        with pytest.raises(InvalidArgumentError, match="worker_devices: expected"):
            options(worker_devices=devices)


@pytest.mark.parametrize(
    ("prefetch_size", "group", "expected"),
    [(4, 1, 4), (4, 2, 2), (4, 16, 2), (9, 4, 3), (1, 1, 1), (1, 16, 1), (2000, 1, 64), (2000, 64, 32)],
)
def test_batches_ahead_are_two_messages_at_least_and_64_at_most(prefetch_size: int, group: int, expected: int) -> None:
    assert RemoteDistSamplingWorkerOptions(prefetch_size=prefetch_size).requests_ahead(group) == expected
