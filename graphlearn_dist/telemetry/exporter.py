"""A process's values in Prometheus's format, over HTTP."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from ..config import num_restarts
from ..errors import InvalidArgumentError, MissingLibraryError
from .process_status import private_bytes, shared_bytes
from .samples import Metric, collect

PREFIX = "graphlearn_dist_"
_TRIES = 64  # ports that are tried, from the first that was asked for
_MOST_CONNECTIONS = 16  # one more ends the oldest: a scrape takes milliseconds, who is slow gives way
_SILENT_S = 10.0  # a connection ends that gives or takes nothing for so long
_log = logging.getLogger(__name__)
_started: MetricsServer | None = None
_starting = threading.Lock()


class _HttpServer(ThreadingHTTPServer):
    """A thread for each of few connections: who scrapes badly, or means ill, takes neither memory nor descriptors."""

    daemon_threads = True

    def __init__(self, address: Any, handler: type[BaseHTTPRequestHandler], family: int) -> None:
        self.address_family = family
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._changing = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(_SILENT_S)
        with self._changing:
            self._open[request] = None
            if len(self._open) > _MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):  # it has ended by itself
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changing:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # who asked is gone, or too slow: that is its own affair
            _log.exception("metrics: an answer to %s failed", client_address)


class MetricsServer:
    """Answers ``GET /metrics`` and ``GET /health`` until it is closed; in threads of its own.

    ``/health`` is 200 with ``ok`` where the process is well, and 503 with the reason where it is not: what probes of
    Kubernetes ask for.

    Args:
        port: where to listen; 0 for any that is free.
        host: address to listen at.
        find_fault: says what the process ails, or None; it must not wait for long.

    Attributes:
        port: where it listens.
    """

    def __init__(self, port: int, host: str, find_fault: Callable[[], str | None]) -> None:
        try:
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import MetricsHandler
        except ImportError as error:
            raise MissingLibraryError(
                "metrics: expected prometheus_client; pip install graphlearn_dist[metrics]"
            ) from error

        class Handler(MetricsHandler):  # type: ignore[misc]  # the library is an extra
            registry = CollectorRegistry(auto_describe=False)

            def do_GET(self) -> None:
                if self.path.partition("?")[0] != "/health":
                    super().do_GET()
                    return
                fault = find_fault()
                text = ("ok" if fault is None else fault).encode() + b"\n"
                self.send_response(200 if fault is None else 503)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        Handler.registry.register(_Collector())
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._server = _HttpServer(address, Handler, family)
        self.port = int(self._server.server_port)
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Collector:
    """What prometheus_client asks at each scrape."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, list[Metric]] = {}
        for metric in [*process_metrics(), *collect()]:
            families.setdefault(metric.name, []).append(metric)
        for name, metrics in families.items():
            make = CounterMetricFamily if metrics[0].is_counter else GaugeMetricFamily
            names = sorted({label for metric in metrics for label in metric.labels})
            family = make(PREFIX + name.removesuffix("_total"), metrics[0].help, labels=names)
            for metric in metrics:
                family.add_metric([metric.labels.get(label, "") for label in names], metric.value)
            yield family


def process_metrics() -> Iterator[Metric]:
    """What every process has."""
    yield Metric("private_memory_bytes", "Memory of this process alone.", private_bytes())
    yield Metric("shared_memory_bytes", "Memory that it shares: mapped files and shared memory.", shared_bytes())
    yield Metric("process_restarts", "Times that the launcher has started this process again.", num_restarts())
    times = os.times()
    yield Metric("cpu_seconds_total", "Processor time of this process.", times.user + times.system)


def _no_fault() -> str | None:
    return None


def start_metrics_server(
    port: int, host: str = "127.0.0.1", find_fault: Callable[[], str | None] = _no_fault
) -> MetricsServer:
    """Shows what this process counts, in Prometheus's format, at ``http://host:port/metrics``.

    Args:
        port: where to listen; 0 for any that is free.
        host: address to listen at; ``"0.0.0.0"`` for all. There is no password: whoever reaches it can read it.
        find_fault: what ``/health`` asks: says what the process ails, or None.

    Raises:
        InvalidArgumentError: a port that is none.
        MissingLibraryError: prometheus_client is not installed.
        OSError: the port is taken.
    """
    if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port < 1 << 16:
        raise InvalidArgumentError(f"port: expected 0 to 65535, got {port!r}")
    return MetricsServer(port, host, find_fault)


def start_for_job(place: tuple[str, int] | None, who: str, find_fault: Callable[[], str | None]) -> None:
    """Starts the metrics server of a process of a job, once, at the first free port from the given one on.

    Raises:
        InvalidArgumentError: none is free.
        MissingLibraryError: prometheus_client is not installed.
    """
    global _started
    with _starting:
        if place is None or _started is not None:
            return
        host, first = place
        for port in range(first, min(first + _TRIES, 1 << 16)):
            try:
                _started = start_metrics_server(port, host, find_fault)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise InvalidArgumentError(f"metrics: cannot listen at {host}:{port}: {error.strerror}") from error
                continue
            shown = socket.gethostname() if host in ("", "0.0.0.0", "::") else host
            _log.info("metrics of %s: http://%s:%d/metrics", who, shown, port)
            return
        raise InvalidArgumentError(f"metrics: expected a free port in {first} to {first + _TRIES - 1}")
