"""TLS between hosts: the same requests, and who is not let in."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from graphlearn_dist.config import RpcSettings, TlsSettings
from graphlearn_dist.errors import AuthenticationError, InvalidArgumentError, ProtocolError
from graphlearn_dist.rpc import Endpoint
from graphlearn_dist.rpc.engine.engines import PythonEngine
from graphlearn_dist.rpc.peers.handshake import MAX_PENDING
from graphlearn_dist.rpc.peers.links import default_listen_host
from tests.support.certificates import Certificates

DEADLINE_S = 60.0
TOKEN = b"the job's token"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def endpoint(role: str, tls: TlsSettings | None, *, token: bytes | None = TOKEN) -> Endpoint:
    settings = RpcSettings(tls=tls, connect_timeout_s=DEADLINE_S, engine=None if tls else "python")
    listen_host = "127.0.0.1" if role == "server" else None
    return Endpoint(role, 0, settings=settings, token=token, listen_host=listen_host, use_unix=False)


@pytest.fixture
def server(certificates: Certificates) -> Iterator[Endpoint]:
    with endpoint("server", certificates.settings()) as opened:
        opened.register("echo", lambda x: x)
        yield opened


def test_requests_small_and_large(server: Endpoint, certificates: Certificates) -> None:
    values = [torch.arange(size, dtype=torch.int32) for size in (0, 3, 1000, 4097, 300_000, 3_000_000)]
    with endpoint("client", certificates.settings(None)) as client:
        assert type(client.engine) is PythonEngine
        futures = [client.request(server.address, "echo", [value, "text"]) for value in values * 4]
        for value, future in zip(values * 4, futures, strict=True):
            echoed, text = future.result(DEADLINE_S)
            assert torch.equal(echoed, value)
            assert text == "text"
        assert server.stats().connections == 1


def test_what_travels_cannot_be_read(server: Endpoint, certificates: Certificates) -> None:
    """Somebody on the way sees none of the bytes, and changes none unnoticed."""
    secret = b"a phrase that stands out " * 40
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pump(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while chunk := source.recv(65536):
                    seen.extend(chunk)
                    target.sendall(chunk)
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

        def relay() -> None:
            here, _ = listener.accept()
            there = socket.create_connection(("127.0.0.1", server.address.port), DEADLINE_S)
            with here, there:
                back = threading.Thread(target=pump, args=[there, here])
                back.start()
                pump(here, there)
                back.join(DEADLINE_S)

        thread = threading.Thread(target=relay)
        thread.start()
        address = type(server.address)("127.0.0.1", listener.getsockname()[1])
        with endpoint("client", certificates.settings(None)) as client:
            assert client.call(address, "echo", secret) == secret
        thread.join(DEADLINE_S)
    assert len(seen) > 2 * len(secret)
    assert secret[:20] not in seen
    assert b"GLD1" not in seen


def test_certificates_that_are_not_accepted(server: Endpoint, certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates.make(tmp_path)
    with endpoint("client", stranger.settings(None)) as client:
        with pytest.raises(AuthenticationError, match="TLS: 127"):
            client.call(server.address, "echo", 1)
    with endpoint("server", certificates.settings("elsewhere.example")) as other:
        other.register("echo", lambda x: x)
        with endpoint("client", certificates.settings(None)) as client:
            with pytest.raises(AuthenticationError, match="IP address mismatch"):
                client.call(other.address, "echo", 1)
        with endpoint("client", certificates.settings(None, check_host=False)) as client:
            assert client.call(other.address, "echo", 1) == 1


def test_certificates_of_those_who_connect(certificates: Certificates, tmp_path: Path) -> None:
    stranger = Certificates.make(tmp_path)
    foreign = stranger.settings()
    trusted = certificates.settings()
    with endpoint("server", certificates.settings(require_certificate=True)) as server:
        server.register("echo", lambda x: x)
        with endpoint("client", trusted) as client:
            assert client.call(server.address, "echo", 1) == 1
        not_ours = TlsSettings(trusted.authority, foreign.certificate, foreign.key)
        for tls in (certificates.settings(None), not_ours):
            with endpoint("client", tls) as client:
                with pytest.raises(AuthenticationError, match="the peer refused: TLS"):
                    client.call(server.address, "echo", 1)
        assert server.stats().refused_connections == 2


def test_the_token_counts_as_well(server: Endpoint, certificates: Certificates) -> None:
    with endpoint("client", certificates.settings(None), token=b"wrong") as client:
        with pytest.raises(AuthenticationError, match="token"):
            client.call(server.address, "echo", 1)


def test_one_side_without_tls(server: Endpoint, certificates: Certificates) -> None:
    with endpoint("client", None) as plain:
        with pytest.raises(ProtocolError, match="expects it, and got a plain connection"):
            plain.call(server.address, "echo", 1)
    assert server.stats().refused_connections == 2  # once it might have been noise
    with endpoint("server", None) as plain, endpoint("client", certificates.settings(None)) as client:
        with pytest.raises(ProtocolError, match="do both sides use TLS"):
            client.call(plain.address, "echo", 1)
        assert plain.stats().refused_connections == 2


def test_strangers(server: Endpoint, certificates: Certificates, caplog: pytest.LogCaptureFixture) -> None:
    """Silent ones, more than there is room for, and one that speaks HTTP."""
    caplog.set_level(logging.WARNING, "graphlearn_dist.rpc.peers.refusals")
    too_many = 5
    with contextlib.ExitStack() as stack:
        place = ("127.0.0.1", server.address.port)
        with socket.create_connection(place, DEADLINE_S) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                assert b"HTTP" not in sock.recv(1000)
        silent = [
            stack.enter_context(socket.create_connection(place, DEADLINE_S)) for _ in range(MAX_PENDING + too_many)
        ]
        with endpoint("client", certificates.settings(None)) as client:
            assert client.call(server.address, "echo", 1) == 1
            for sock in silent:  # the oldest at once, the others after 3 s
                with contextlib.suppress(ConnectionError):
                    assert sock.recv(1) == b""
            assert client.call(server.address, "echo", 2) == 2
        assert server.stats().refused_connections == 1 + len(silent)
    lines = [record.getMessage() for record in caplog.records]
    assert sum("http request" in line for line in lines) == 1
    assert len(lines) <= 10


def test_what_the_settings_must_be(certificates: Certificates, tmp_path: Path) -> None:
    tls = certificates.settings()
    environ = {"GLD_TLS_AUTHORITY": "a", "GLD_TLS_CERTIFICATE": "c", "GLD_TLS_KEY": "k", "GLD_TLS_CHECK_HOST": "0"}
    assert TlsSettings.from_environ({}) is None
    assert TlsSettings.from_environ(environ) == TlsSettings("a", "c", "k", check_host=False)
    with pytest.raises(InvalidArgumentError, match="authority"):
        TlsSettings.from_environ({"GLD_TLS_CERTIFICATE": "c"})
    with pytest.raises(InvalidArgumentError, match="certificate and key"):
        TlsSettings("a", "c")
    with pytest.raises(InvalidArgumentError, match="has no TLS"):
        RpcSettings(engine="native", tls=tls)
    with pytest.raises(InvalidArgumentError, match="cannot use"):
        endpoint("server", TlsSettings(str(tmp_path / "missing.pem")))
    with pytest.raises(InvalidArgumentError, match="needs a certificate"):
        endpoint("server", certificates.settings(None)).open()
    assert default_listen_host("127.0.0.1", silent=True) is None


def test_certificates_of_the_environment(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    tls = certificates.settings()
    for name, value in (("AUTHORITY", tls.authority), ("CERTIFICATE", tls.certificate), ("KEY", tls.key)):
        monkeypatch.setenv(f"GLD_TLS_{name}", str(value))
    with Endpoint("server", 0, token=TOKEN) as server, endpoint("client", tls) as client:
        server.register("echo", lambda x: x)
        assert client.call(server.address, "echo", 1) == 1
        with Endpoint("client", 1, token=TOKEN, listen_host=None) as local:  # over a unix socket, without
            assert local.call(server.address, "echo", 1) == 1
            assert local.stats().unix_connections == 1
