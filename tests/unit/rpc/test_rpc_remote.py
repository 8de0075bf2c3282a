"""Functions that other processes call: declared where they are written, checked where they are called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from graphlearn_dist.config import RpcSettings
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.rpc import Endpoint, encode
from graphlearn_dist.rpc.calls.remote import Remote, remote, remote_functions, remote_name

SETTINGS = RpcSettings(request_timeout_s=60.0)


class Store:
    def __init__(self, values: dict[str, int]) -> None:
        self.values = values

    @remote
    def get(self, key: str, default: int = 0) -> int:
        return self.values.get(key, default)

    @remote
    async def keys(self) -> list[str]:
        return sorted(self.values)

    @remote
    def encoded(self) -> dict[str, int]:
        return encode(self.values)  # type: ignore[return-value]

    def private(self) -> int:
        return 1


class Doubled(Store):
    """Overrides without saying so again: what is declared once stays declared, under the name it had."""

    def get(self, key: str, default: int = 0) -> int:
        return 2 * super().get(key, default)


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint("server", 0, settings=SETTINGS) as endpoint:
        endpoint.register_all(remote_functions(Store({"a": 1, "b": 2})))
        endpoint.register_all(remote_functions(Doubled({"a": 10}), ".second"))
        yield endpoint


@pytest.fixture
def client() -> Iterator[Endpoint]:
    with Endpoint("client", 0, settings=SETTINGS, listen_host=None) as endpoint:
        yield endpoint


@pytest.mark.usefixtures("engines")
def test_functions_are_called_by_themselves(server: Endpoint, client: Endpoint) -> None:
    store: Remote[Store] = Remote(client, server.address)
    assert store.call(Store.get, "b") == 2
    assert store.ask(Store.get, "c", default=7).result() == 7
    assert store.call(Store.keys) == ["a", "b"]
    assert store.call(Store.encoded) == {"a": 1, "b": 2}
    second: Remote[Store] = Remote(client, server.address, suffix=".second", timeout_s=30.0, fail_fast=True)
    assert second.call(Store.get, "a") == 20
    assert second.call(Store.keys) == ["a"]


def test_what_is_declared_and_nothing_else(server: Endpoint, client: Endpoint) -> None:
    assert sorted(remote_functions(Store)) == ["Store.encoded", "Store.get", "Store.keys"]
    assert remote_functions(Store)["Store.get"] is Store.get
    assert sorted(remote_functions(Doubled({}), ".1")) == ["Store.encoded.1", "Store.get.1", "Store.keys.1"]
    assert remote_name(Store.get) == "Store.get"
    store: Remote[Any] = Remote(client, server.address)
    with pytest.raises(InvalidArgumentError, match=r"declared by @remote, got <function Store\.private"):
        store.ask(Store.private)
    with pytest.raises(InvalidArgumentError, match=r"'Store\.private' is not registered"):
        client.call(server.address, "Store.private")


WRONG = """
from graphlearn_dist.distributed.dist_server import DistServer
from graphlearn_dist.distributed.partitions.partition_service import PartitionService
from graphlearn_dist.rpc.calls.remote import Remote


def ask(server: Remote[DistServer]) -> None:
    server.ask(DistServer.fetch_batch, 1, 2, 3)
    server.ask(DistServer.fetch_batch, 1, 2, "3")  # wrong
    server.ask(DistServer.fetch_batch, 1)  # wrong
    server.ask(DistServer.get_edge_size, None, lay_out="coo")  # wrong
    server.ask(PartitionService.spread, 1)  # wrong
    held: bool = server.call(DistServer.holds_producer, 1)
    name: str = server.call(DistServer.holds_producer, 1)  # wrong
    assert held and name
"""


@pytest.mark.thorough
def test_a_type_checker_finds_wrong_arguments(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    (tmp_path / "asks.py").write_text(WRONG, encoding="utf-8")
    text, errors, _ = api.run(["--strict", "--follow-imports=silent", str(tmp_path / "asks.py")])
    assert not errors, errors
    found = {int(line.split(":")[1]) for line in text.splitlines() if ": error:" in line}
    assert found == {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}, text
