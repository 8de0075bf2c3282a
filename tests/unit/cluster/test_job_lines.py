"""What a launcher reads from its processes, says of their hosts, and keeps of it; what hosts are asked, and answer."""

from __future__ import annotations

import io
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphlearn_dist.cluster.jobs.backend import OutputReader
from graphlearn_dist.cluster.jobs.checks import check, master_address, network_environ, questions
from graphlearn_dist.cluster.jobs.host_watch import HostWatch
from graphlearn_dist.cluster.jobs.job_output import JobOutput
from graphlearn_dist.cluster.jobs.plan import Host, LaunchPlan, ProcessSpec
from graphlearn_dist.cluster.jobs.probe import Answer, Question, look
from graphlearn_dist.config import port_range
from graphlearn_dist.errors import InvalidArgumentError, ResourceInsufficientError
from graphlearn_dist.rpc import Endpoint


def spec(name: str, host: str = "b") -> ProcessSpec:
    role, rank = name.split()
    return ProcessSpec(role, int(rank), host, (), {})


# --- output -----------------------------------------------------------------------------------------------------

WRITTEN = "one\n\x1estarted\x1ftw\x1e.\x1fo é\n\x1e\x1eready\x1f\x1f\nlast\x1eended 7\x1f".encode()
READ = [
    ("one", ""),
    ("", "started"),
    ("", "."),
    ("two é", ""),
    ("", "ready"),
    ("\x1e\x1f", ""),
    ("", "ended 7"),
    ("last", ""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_signs_are_taken_out_of_lines_wherever_they_are_cut(size: int) -> None:
    reading, writing = os.pipe()
    found = []
    with os.fdopen(reading, "rb", buffering=0) as stream:
        lines = iter(OutputReader(stream.fileno()))
        os.write(writing, WRITTEN[:size])
        rest = WRITTEN[size:]

        def feed() -> Iterator[bytes]:
            for start in range(0, len(rest), size):
                yield rest[start : start + size]

        pieces = feed()
        real_read = os.read

        def read(descriptor: int, count: int) -> bytes:
            text = real_read(descriptor, count)
            piece = next(pieces, None)
            if piece is not None:
                os.write(writing, piece)
            elif text:
                os.close(writing)
            return text

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "read", read)
            found = list(lines)
    assert found == READ


def test_what_only_begins_like_a_sign_is_text() -> None:
    reading, writing = os.pipe()
    text = b"\x1e" + b"x" * 500 + b"\nend \x1e"
    os.write(writing, text)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as stream:
        assert list(OutputReader(stream.fileno())) == [("\x1e" + "x" * 500, ""), ("end \x1e", "")]


def test_logs_of_earlier_jobs_get_a_number(tmp_path: Path) -> None:
    (tmp_path / "mine.log").write_text("not ours")
    for job in range(3):
        output = JobOutput(str(tmp_path), io.StringIO())
        output.open(spec("server 0"))
        output.write(spec("server 0"), f"job {job}")
        output.note(f"note {job}")
        output.close()
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts.keys() == {
        "mine.log",
        *(f"{name}.log{number}" for name in ("server-0", "launcher") for number in ("", ".1", ".2")),
    }
    assert [texts[f"server-0.log{number}"] for number in (".1", ".2", "")] == ["job 0\n", "job 1\n", "job 2\n"]
    assert [texts[f"launcher.log{number}"].split()[-1] for number in (".1", ".2", "")] == ["0", "1", "2"]


# --- hosts ------------------------------------------------------------------------------------------------------


def test_a_host_falls_silent_comes_back_and_is_lost() -> None:
    now, said = [0.0], list[str]()
    watch = HostWatch(30.0, said.append, lambda: now[0])
    watch.heard(spec("server 1"))
    watch.heard(spec("trainer 1"))
    watch.heard(spec("server 0", "a"))

    def pass_time(seconds: float, alive: str = "server 0") -> list[str]:
        lost = []
        for _ in range(round(seconds)):
            now[0] += 1
            watch.heard(spec(alive, "a"))
            lost += watch.lost()
        return lost

    assert pass_time(3) == []
    assert said == []
    assert not watch.is_silent(spec("server 1"))
    assert pass_time(1) == []
    assert said == ["b: silent for 4 s (server 1, trainer 1)"]
    assert watch.is_silent(spec("trainer 1"))
    pass_time(6)
    watch.heard(spec("trainer 1"))
    assert said[1:] == ["b: back after 10 s"]
    assert pass_time(30) == []
    assert pass_time(1) == ["b"]
    assert said[2:] == ["b: silent for 4 s (server 1, trainer 1)", "b: lost, silent for 31 s"]
    assert pass_time(60) == []  # said once


def test_a_launcher_that_was_stopped_blames_nobody() -> None:
    now, said = [0.0], list[str]()
    watch = HostWatch(30.0, said.append, lambda: now[0])
    watch.heard(spec("server 1"))
    now[0] = 500.0
    assert watch.lost() == []
    assert said == []


def test_hosts_whose_processes_have_ended_are_not_silent() -> None:
    now, said = [0.0], list[str]()
    watch = HostWatch(0.0, said.append, lambda: now[0])
    watch.heard(spec("server 1"))
    watch.ended(spec("server 1"))
    for _ in range(100):
        now[0] += 1
        assert watch.lost() == []
    assert said == []


# --- what hosts answer ------------------------------------------------------------------------------------------

PLAN = LaunchPlan("t.py", data="/d", num_servers=2, num_trainers=2, backend="ssh", hosts=(Host("u@a"), Host("b")))


def test_hosts_are_asked_for_what_they_need() -> None:
    asked = questions(PLAN, PLAN.placement(), [29400, 29401])
    assert asked == {
        "u@a": Question(["t.py"], "/d", [29400, 29401], ["a", "b"]),
        "b": Question(["t.py"], "/d", (), ["a", "b"]),
    }


def test_all_that_is_missing_is_said() -> None:
    answers = {
        "u@a": Answer(num_parts=2, parts=[0], taken_ports=[29401]),
        "b": Answer(missing_files=["t.py"], num_parts=2, parts=[]),
    }
    with pytest.raises(InvalidArgumentError) as error:
        check(PLAN, PLAN.placement(), answers)
    assert str(error.value).splitlines() == [
        "port: 29401 on u@a, for torch, next to the registry's, is taken; choose another one with --port",
        "script: expected a file on b, got 't.py': there is none",
        "data: server 1 on b needs part1 of /d; it has no partition",
    ]
    check(PLAN, PLAN.placement(), {"u@a": Answer(num_parts=2, parts=[0]), "b": Answer(num_parts=2, parts=[1])})


@pytest.mark.parametrize(
    ("at_a", "at_b", "address", "environ"),
    [
        # its own name leads to its loopback
        (Answer(addresses={"a": "127.0.1.1"}), Answer(addresses={"a": "10.0.0.1"}), "10.0.0.1", {}),
        # names that only ssh knows
        (Answer(addresses={"a": ""}, ssh_address="10.0.0.1", ssh_interface="e1", interfaces={"b": ""}),
         Answer(addresses={"a": ""}), "10.0.0.1", {"GLOO_SOCKET_IFNAME": "e1"}),
        # nothing is known: what the user said
        (Answer(addresses={"a": ""}), Answer(addresses={"a": ""}), "a", {}),
        (Answer(addresses={"b": "10.0.0.2"}, interfaces={"b": "e0"}), Answer(addresses={"a": "127.0.0.1"}), "a",
         {"GLOO_SOCKET_IFNAME": "e0"}),
    ],
)  # fmt: skip
def test_where_the_first_host_is_reached(at_a: Answer, at_b: Answer, address: str, environ: dict[str, str]) -> None:
    hosts, answers = ["u@a", "b"], {"u@a": at_a, "b": at_b}
    assert master_address(hosts, answers) == address
    if "b" not in at_a.interfaces:
        at_a.interfaces["b"] = ""
    assert network_environ("u@a", hosts, answers) == environ
    assert network_environ("u@a", ["u@a"], answers) == {}  # alone


def test_a_probe_looks(tmp_path: Path) -> None:
    (tmp_path / "part0").mkdir()
    (tmp_path / "part10").mkdir()
    (tmp_path / "partition").mkdir()
    (tmp_path / "META.json").write_text('{"num_parts": 11}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        asked = Question(
            [str(tmp_path / "META.json"), "/no/such"], str(tmp_path), [port], ["127.0.0.1", "no such host"]
        )
        found = look(asked)
    assert (found.missing_files, found.num_parts, found.parts, found.taken_ports) == (["/no/such"], 11, [0, 10], [port])
    assert found.addresses == {"127.0.0.1": "127.0.0.1", "no such host": ""}
    assert found.interfaces == {"127.0.0.1": "lo", "no such host": ""}
    assert look(Question(data="/no/such")).num_parts == -1


# --- ports ------------------------------------------------------------------------------------------------------


def test_endpoints_take_the_first_free_port_of_a_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceInsufficientError, match=f"a free one of {port} to {port + 0}"):
            Endpoint("server", 0, listen_port=range(port, port + 1)).open()
        found = None
        with Endpoint("server", 0, listen_port=range(port, port + 50)) as endpoint:
            found = endpoint.address.port
        assert port < found < port + 50


@pytest.mark.parametrize("text", ["29400", "1-x", "9-8", "0-5", "1-70000", "-"])
def test_a_range_of_ports_in_the_environment(text: str) -> None:
    assert port_range({"GLD_PORT_RANGE": "29400-29500"}) == (29400, 29500)
    assert port_range({}) is None
    with pytest.raises(InvalidArgumentError, match="GLD_PORT_RANGE: expected LOW-HIGH"):
        port_range({"GLD_PORT_RANGE": text})


def test_a_range_too_small_for_a_host() -> None:
    with pytest.raises(InvalidArgumentError, match="port_range: expected 4 ports, for what runs on localhost, got 3"):
        LaunchPlan("t.py", data="d", port_range=(29400, 29402)).placement()
