"""A process's values over HTTP, read by the parser of Prometheus's own library."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import graphlearn_dist.rpc.endpoint as endpoint_module
from graphlearn_dist.errors import InvalidArgumentError, MissingLibraryError
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.telemetry import Metric, exporter, register_source, start_metrics_server

parser = pytest.importorskip("prometheus_client.parser", reason="the extra [metrics] is not installed")


class Source:
    """Has two values of one name, and one that only grows."""

    def metrics(self) -> Iterator[Metric]:
        for peer, value in (("server 0", 3.0), ('odd "name"\n', 4.0)):
            yield Metric("test_ready", "Ready.", value, {"peer": peer})
        yield Metric("test_bytes_total", "Bytes.", 7.0)

    def status(self) -> Iterator[object]:
        return iter(())


def read(port: int) -> dict[tuple[str, str], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        families = list(parser.text_string_to_metric_families(answer.read().decode()))
    return {(sample.name, sample.labels.get("peer", "")): sample.value for one in families for sample in one.samples}


def well() -> str | None:
    return None


def health(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health?verbose", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health() -> None:
    faults: list[str | None] = [None, "it hangs"]
    with start_metrics_server(0, find_fault=lambda: faults.pop(0)) as server:
        assert health(server.port) == (200, "ok\n")
        assert health(server.port) == (503, "it hangs\n")


def test_an_endpoint_whose_loop_hangs_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "_BUSY_S", 0.1)
    go_on, hangs = threading.Event(), threading.Event()
    with Endpoint("server", 0) as endpoint, start_metrics_server(0, find_fault=endpoint.find_fault) as server:
        assert health(server.port) == (200, "ok\n")
        endpoint.loop.call_soon_threadsafe(lambda: (hangs.set(), go_on.wait()))
        assert hangs.wait(60)
        assert health(server.port) == (503, "the event loop of server-0 has been busy for more than 0.1 s\n")
        go_on.set()
        while health(server.port)[0] == 503:
            pass
        endpoint.close()
        assert health(server.port) == (503, "server-0 is closed\n")


def test_values_of_all_sources() -> None:
    source = Source()
    register_source(source)
    with start_metrics_server(0) as server:
        found = read(server.port)
        assert found["graphlearn_dist_test_ready", "server 0"] == 3.0
        assert found["graphlearn_dist_test_ready", 'odd "name"\n'] == 4.0
        assert found["graphlearn_dist_test_bytes_total", ""] == 7.0
        assert found["graphlearn_dist_private_memory_bytes", ""] > 0
        del source
        assert ("graphlearn_dist_test_bytes_total", "") not in read(server.port)


def test_the_processes_of_a_job_take_the_next_free_port(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(exporter, "_started", None)
    exporter.start_for_job(None, "nobody", well)
    assert exporter._started is None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        exporter.start_for_job(("127.0.0.1", first), "server 0", well)
        started = exporter._started
        assert started is not None
        with started:
            assert first < started.port < first + 64
            assert f"metrics of server 0: http://127.0.0.1:{started.port}/metrics" in caplog.messages
            exporter.start_for_job(("127.0.0.1", first), "server 0 again", well)
            assert exporter._started is started


def test_who_scrapes_badly_takes_no_more_than_a_few_places(caplog: pytest.LogCaptureFixture) -> None:
    """Half a request, answers that are not read and garbage: the newest connection is served, the oldest ends."""
    most = exporter._MOST_CONNECTIONS
    with contextlib.ExitStack() as stack, start_metrics_server(0) as server:
        place = ("127.0.0.1", server.port)
        silent = [stack.enter_context(socket.create_connection(place, timeout=60)) for _ in range(3 * most)]
        for each in silent:
            each.sendall(b"GET /metr")
        assert health(server.port) == (200, "ok\n")
        assert len(server._server._open) <= most
        for each in silent[: 2 * most + 1]:
            each.settimeout(60)
            assert each.recv(1) == b""  # ended, as others came after it
        for garbage in (b"\x16\x03\x01\xff" * 1000, b"GET " + b"a" * 100_000, b"POST / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(place, timeout=60) as each, contextlib.suppress(OSError):
                each.sendall(garbage)
                each.shutdown(socket.SHUT_WR)
                while each.recv(1 << 16):
                    pass
        assert health(server.port) == (200, "ok\n")
    assert caplog.messages == []


def test_a_connection_that_is_silent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "_SILENT_S", 0.05)
    with start_metrics_server(0) as server, socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
        assert silent.recv(1) == b""


def test_a_source_that_fails_is_told_in_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    source.metrics = lambda: [][0]  # type: ignore[method-assign]
    register_source(source)
    with start_metrics_server(0) as server:
        with pytest.raises(http.client.RemoteDisconnected):
            read(server.port)
        assert health(server.port) == (200, "ok\n")
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [IndexError]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("port", [-1, 1 << 16, "80", True])
def test_ports_that_are_none(port: int) -> None:
    with pytest.raises(InvalidArgumentError, match="port: expected 0 to 65535"):
        start_metrics_server(port)


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MissingLibraryError, match=r"graphlearn_dist\[metrics\]"):
        start_metrics_server(0)


def test_the_dashboard_asks_for_what_there_is() -> None:
    """Names of the dashboard and of the documents are those that sources show."""
    root = Path(__file__).resolve().parents[3]
    code = "\n".join(path.read_text() for path in (root / "graphlearn_dist").rglob("*.py"))
    shown = set(re.findall(r'Metric\(\s*"(\w+)"', code))
    board = json.loads((root / "examples/grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"graphlearn_dist_(\w+)", target["expr"])
    }
    assert asked <= shown
    table = (root / "docs/telemetry.md").read_text().split("| name (after", 1)[1]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == shown
