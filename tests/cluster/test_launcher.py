"""The launcher: how jobs begin, end well, fail, are interrupted, and that nothing is ever left."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from launch_job import DEADLINE_S, LINGER, Job

import graphlearn_dist.cluster
from graphlearn_dist.cluster import Host, LaunchPlan, Master, launch, plan_processes, read_hosts
from graphlearn_dist.cluster.jobs.backend import LocalBackend
from graphlearn_dist.cluster.jobs.launcher import describe_exit
from graphlearn_dist.cluster.jobs.plan import ProcessSpec
from graphlearn_dist.cluster.jobs.wrapper import FROZEN
from graphlearn_dist.errors import InvalidArgumentError, LaunchError
from tests.support.waiting import wait_until


def lines_until(process: subprocess.Popen[str], text: str, count: int) -> None:
    """Reads output until ``text`` has come ``count`` times."""
    assert process.stdout is not None
    while count:
        line = process.stdout.readline()
        assert line, f"the launcher ended before it printed {text!r}: {process.stderr.read()}"  # type: ignore[union-attr]
        count -= text in line


# --- ends well --------------------------------------------------------------------------------------------------


def test_success_runs_every_process_with_its_rank_and_arguments(job: Job) -> None:
    arguments = ["two words", "--servers", 'a"b', "$HOME;`x`", "", "*"]
    done = job.run("--server-script", "server.py", "--servers", "2", "--trainers", "2", "train.py", *arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for rank in range(2):
        assert f"[server {rank}] serving {rank}" in lines
        assert f"[trainer {rank}] arguments {arguments!r}" in lines
        assert f"[trainer {rank}] ranks client {rank} {rank} {rank} 2" in lines
    assert job.alive() == []


def test_servers_that_stay_are_stopped_after_the_trainers(job: Job) -> None:
    train = job.script("trivial.py", "print('done')")
    out = io.StringIO()
    plan = LaunchPlan(
        script=train,
        server_script=str(job.directory / "linger.py"),
        num_trainers=2,
        env=dict([job.mark.split("=")]),
        server_exit_s=0.1,
    )
    assert launch(plan, out=out) == 0
    assert sorted(line for line in out.getvalue().splitlines() if "done" in line) == [
        "[trainer 0] done",
        "[trainer 1] done",
    ]
    assert job.alive() == []


def test_log_files_hold_the_lines_without_prefix(job: Job) -> None:
    train = job.script("lines.py", "import sys; print('one'); print('two', file=sys.stderr); print('three', end='')")
    serve = job.script("quiet.py", "")
    assert job.run("--server-script", serve, "--log-dir", "logs/deep", train).returncode == 0
    assert (job.directory / "logs/deep/trainer-0.log").read_text() == "one\ntwo\nthree\n"
    assert (job.directory / "logs/deep/server-0.log").read_text() == ""


def test_a_log_on_a_full_disk_is_given_up(job: Job) -> None:
    (job.directory / "logs").mkdir()
    (job.directory / "logs/trainer-0.log").symlink_to("/dev/full")
    train = job.script("lines.py", "print('one'); print('two')")
    done = job.run("--server-script", job.script("quiet.py", ""), "--log-dir", "logs", train)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        "[launcher] trainer 0: its log cannot be written any more: No space left on device; it goes on without",
        "[trainer 0] one",
        "[trainer 0] two",
    ]


def test_threads_are_shared_out_unless_set(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    train = job.script("threads.py", "import os; print('threads', os.environ['OMP_NUM_THREADS'])")
    serve = job.script("quiet.py", "")
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    for extra, expected in (([], share), (["--env", "OMP_NUM_THREADS=7"], 7)):
        done = job.run("--server-script", serve, "--trainers", "2", *extra, train)
        assert sorted(done.stdout.splitlines()) == [f"[trainer {rank}] threads {expected}" for rank in range(2)]


# --- fails ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "said", "exit_code"),
    [("sys.exit(3)", "exited with code 3", 3), ("os.abort()", "killed by SIGABRT", 134)],
)
def test_a_failing_trainer_stops_the_others_and_is_named(job: Job, end: str, said: str, exit_code: int) -> None:
    code = f"""
    import os, signal, sys
    if os.environ["RANK"] == "0":
        signal.pause()
    for i in range(30):
        print("line", i)
    {end}
    """
    script = job.script("fail.py", code)
    done = job.run("--server-script", "linger.py", "--servers", "2", "--trainers", "2", script)
    assert done.returncode == exit_code
    first, *tail = done.stderr.splitlines()
    assert first.startswith("graphlearn-dist: trainer 1 ")
    assert said in first
    assert tail == [f"  line {i}" for i in range(10, 30)]
    assert job.alive() == []


def test_a_failing_server_stops_the_trainers(job: Job) -> None:
    serve = job.script("bad.py", "import os; 1 / (os.environ['GLD_RANK'] == '0')")
    done = job.run("--server-script", serve, "--servers", "2", "linger.py")
    assert done.returncode == 1
    assert "server 1 exited with code 1" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert job.alive() == []


def test_a_script_that_is_not_there(job: Job) -> None:
    done = job.run("--server-script", "linger.py", "missing.py")
    assert done.returncode == 1
    assert done.stderr == "graphlearn-dist: script: expected a file, got 'missing.py': there is none\n"
    assert done.stdout == ""  # nothing was started


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_a_users_mistake_is_one_line(job: Job, prefix: str) -> None:
    """Its traceback stands above, where it was printed."""
    script = f"""
        import sys
        print("{prefix}Traceback (most recent call last):", file=sys.stderr)
        sys.exit("{prefix}graphlearn_dist.errors.InvalidArgumentError: edge_dir: expected 'in', got 'out'")
    """
    done = job.run("--server-script", "linger.py", job.script("wrong.py", script))
    assert done.stderr == (
        "graphlearn-dist: trainer 0 exited with code 1: InvalidArgumentError: edge_dir: expected 'in', got 'out'\n"
    )


def test_where_the_ends_of_children_are_ignored_exit_codes_are_known(job: Job) -> None:
    """Some supervisors hand that down; the launcher waited for ever."""
    launcher = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    command = [sys.executable, "-m", "graphlearn_dist", "launch", "--server-script", str(job.directory / "linger.py")]
    done = subprocess.run(
        [sys.executable, "-c", launcher, *command, job.script("seven.py", "raise SystemExit(7)")],
        env={**os.environ, **dict([job.mark.split("=")])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 7, done.stderr
    assert "trainer 0 exited with code 7" in done.stderr
    assert job.alive() == []


def test_in_a_thread_where_the_ends_of_children_are_ignored_nothing_is_launched(job: Job) -> None:
    plan = LaunchPlan(script=job.script("seven.py", "raise SystemExit(7)"), server_script=job.script("quiet.py", ""))
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with ThreadPoolExecutor(1) as thread, pytest.raises(LaunchError, match="expected SIGCHLD not to be ignored"):
            thread.submit(launch, plan, out=io.StringIO()).result(DEADLINE_S)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert job.alive() == []


def test_launch_raises_in_python(job: Job) -> None:
    plan = LaunchPlan(script=job.script("bad.py", "raise SystemExit(9)"), server_script=job.script("quiet.py", ""))
    with pytest.raises(LaunchError, match="trainer 0 exited with code 9; no output") as failure:
        launch(plan, out=io.StringIO())
    copy = pickle.loads(pickle.dumps(failure.value))
    assert (failure.value.code, copy.code, str(copy)) == (9, 9, str(failure.value))


# --- is interrupted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_everything(job: Job, signum: int) -> None:
    process = job.start("--server-script", "linger.py", "--servers", "2", "--trainers", "2", "linger.py")
    lines_until(process, "lingering", 4)
    # The launcher, and four times: wrapper, script, the script's child, whose environment shows a moment after exec.
    wait_until(lambda: len(job.alive()) == 13)
    process.send_signal(signum)
    assert process.wait(DEADLINE_S) == 128 + signum
    assert job.alive() == []


def test_a_second_signal_kills_what_ignores_the_first(job: Job) -> None:
    process = job.start("--server-script", "linger.py", "linger.py", "--stubborn")
    lines_until(process, "lingering", 2)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "SIGINT: stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    assert job.alive() == []


def test_what_ignores_sigterm_is_killed_after_a_while(job: Job) -> None:
    plan = LaunchPlan(
        script=job.script("fail.py", "import sys; sys.stdin.read(); raise SystemExit(1)"),
        server_script=job.script(
            "stubborn.py", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()"
        ),
        env=dict([job.mark.split("=")]),
        stop_s=0.3,
    )
    with pytest.raises(LaunchError, match="trainer 0"):
        launch(plan, out=io.StringIO())
    assert job.alive() == []


def test_a_killed_launcher_takes_everything_with_it(job: Job) -> None:
    process = job.start("--server-script", "linger.py", "--trainers", "2", "linger.py")
    lines_until(process, "lingering", 3)
    process.kill()
    process.wait(DEADLINE_S)
    wait_until(lambda: job.alive() == [])


def test_the_master_port_is_free_after_the_job(job: Job) -> None:
    import socket

    train = job.script("port.py", "import os; print('port', os.environ['GLD_MASTER_PORT'])")
    done = job.run("--server-script", job.script("quiet.py", ""), train)
    port = int(done.stdout.split("port ")[1])
    with socket.create_server(("127.0.0.1", port)):
        pass


# --- ssh --------------------------------------------------------------------------------------------------------


@pytest.fixture
def shim(job: Job) -> str:
    """Takes ssh's arguments, notes the host and what runs there, and runs it with the local shell, as sshd would."""
    note = 'case "$3" in *probe.py*) echo "asked $2";; *) echo "$2";; esac >> hosts.log'
    path = Path(job.script("shim.sh", f'#!/bin/sh\n[ "$1" = -T ] || exit 99\n{note}\nexec sh -c "$3"\n'))
    path.chmod(0o755)
    return str(path)


def test_ssh_runs_the_same_job_through_remote_command_lines(job: Job, shim: str, port: int) -> None:
    hosts = job.script("hosts", "127.0.0.1  # the master\n127.0.0.2 slots=2\n")
    arguments = ["two words", "it's", 'a"b', "$HOME;`x`", "", "*"]
    job.script("wait.py", TRAINER_THAT_WAITS)
    places = ["--on", "ssh", "--ssh", shim, "--hosts", hosts, "--port", str(port)]
    sizes = ["--server-script", "server.py", "--servers", "2", "--trainers", "3"]
    done = job.run(*places, *sizes, "wait.py", *arguments)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [f"[trainer {rank}] {arguments!r} {local}" for rank, local in enumerate([0, 0, 1])] == sorted(
        line for line in lines if line.startswith("[trainer")
    )
    places = ["127.0.0.1"] * 2 + ["127.0.0.2"] * 3 + ["asked 127.0.0.1", "asked 127.0.0.2"]  # each is asked once
    assert sorted((job.directory / "hosts.log").read_text().splitlines()) == places
    assert job.alive() == []


TRAINER_THAT_WAITS = """
import os, socket, sys, time
address = os.environ["GLD_MASTER_ADDR"], int(os.environ["GLD_MASTER_PORT"])
deadline = time.monotonic() + 30
while True:
    try:
        socket.create_connection(address, 30).close()
        break
    except ConnectionRefusedError:
        if time.monotonic() > deadline:
            raise
print(sys.argv[1:], os.environ["LOCAL_RANK"])
"""


def test_ssh_interrupted_leaves_nothing(job: Job, shim: str) -> None:
    hosts = job.script("hosts", "a\nb\n")
    process = job.start("--on", "ssh", "--ssh", shim, "--hosts", hosts, "--server-script", "linger.py", "linger.py")
    lines_until(process, "lingering", 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    assert job.alive() == []


def test_token_reaches_every_process_and_no_command_line(job: Job, shim: str) -> None:
    hosts = job.script("hosts", "a\nb\n")
    job.script("token.py", "import os; print('token', os.environ['GLD_TOKEN'])")
    job.script("note.sh", '#!/bin/sh\necho "$3" >> commands.log\nexec sh -c "$3"\n')
    (job.directory / "note.sh").chmod(0o755)
    places = ["--on", "ssh", "--ssh", str(job.directory / "note.sh"), "--hosts", hosts]
    for options in (places, []):  # over ssh, and on this machine
        done = job.run(*options, "--server-script", "token.py", "--trainers", "2", "token.py")
        tokens = {line.rsplit(" ", 1)[1] for line in done.stdout.splitlines() if " token " in line}
        assert len(tokens) == 1, done.stdout + done.stderr
        token = tokens.pop()
        assert len(token) == 64
        assert token not in (job.directory / "commands.log").read_text()


def test_ssh_processes_end_when_their_link_closes(job: Job) -> None:
    child = Path(graphlearn_dist.cluster.__path__[0]) / "jobs" / "wrapper.py"
    script = job.script("linger.py", LINGER)
    command = [sys.executable, str(child), "--link", "1", "--", sys.executable, script]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=job.directory)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"secret\n")
    process.stdin.flush()
    assert b"lingering" in process.stdout.readline()
    process.stdin.close()
    assert process.wait(DEADLINE_S) != 0
    process.stdout.close()
    assert job.alive() == []


def test_ssh_that_cannot_be_started(job: Job) -> None:
    hosts = job.script("hosts", "a\n")
    done = job.run("--on", "ssh", "--ssh", "/no/such/ssh", "--hosts", hosts, "--server-script", "linger.py", "x.py")
    assert done.returncode == 1
    assert done.stderr == "graphlearn-dist: ssh: cannot run /no/such/ssh: No such file or directory\n"


def test_a_job_is_called_off_while_hosts_are_asked(job: Job) -> None:
    path = Path(job.script("silent.sh", "#!/bin/sh\necho asked >> asked.log\nexec sleep 1000\n"))
    path.chmod(0o755)
    hosts = job.script("hosts", "a\n")
    places = ["--on", "ssh", "--ssh", str(path), "--hosts", hosts]
    process = job.start(*places, "--server-script", "linger.py", "linger.py")
    wait_until((job.directory / "asked.log").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    assert job.alive() == []


# --- plans ------------------------------------------------------------------------------------------------------


def test_placement_takes_hosts_in_turn() -> None:
    plan = LaunchPlan(
        script="t.py", data="d", num_servers=3, num_trainers=4, backend="ssh", hosts=(Host("a"), Host("b", 2))
    )
    specs = plan_processes(plan, Master("a", 1000, 1001))
    assert [(spec.name, spec.host) for spec in specs] == [
        ("server 0", "a"),
        ("server 1", "b"),
        ("server 2", "b"),
        ("trainer 0", "a"),
        ("trainer 1", "b"),
        ("trainer 2", "b"),
        ("trainer 3", "a"),
    ]
    assert [spec.env.get("LOCAL_RANK") for spec in specs[3:]] == ["0", "0", "1", "1"]
    assert [spec.share_cores for spec in specs] == [0, 0, 0, 2, 2, 2, 2]
    assert specs[1].command[1:] == ["-m", "graphlearn_dist", "serve", "--rank", "1", "--data", os.path.abspath("d")]


def test_read_hosts(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# machines\n\nalpha\nuser@beta slots=4 # big\n")
    assert read_hosts(path) == [Host("alpha"), Host("user@beta", 4)]


@pytest.mark.parametrize("text", ["", "# none\n", "a b\n", "a slots=\n", "a slots=0\n", "a slots=1 x\n", "-oProxy=x\n"])
def test_read_hosts_refuses(tmp_path: Path, text: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(InvalidArgumentError):
        read_hosts(path)


def test_hosts_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(b"\xff\n")
    with pytest.raises(InvalidArgumentError, match=r"hosts: cannot read .*: 'utf-8' codec"):
        read_hosts(tmp_path / "hosts")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"num_servers": 0}, "num_servers"),
        ({"num_trainers": -1}, "num_trainers"),
        ({"data": None}, "data"),
        ({"backend": "ssh"}, "hosts"),
        ({"port": 0}, "port"),
        ({"port_range": (29500, 29400)}, "port_range"),
        ({"port_range": (29400, 29500), "port": 29300}, "port: expected None"),
        ({"launcher_timeout_s": 1.0}, "launcher_timeout_s"),
        ({"script_args": "text"}, "script_args"),
        ({"stop_s": float("nan")}, "stop_s"),
        ({"heartbeat_timeout_s": 1.0}, "heartbeat_timeout_s"),
    ],
)
def test_bad_plans(change: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        LaunchPlan(**{"script": "t.py", "data": "d", **change})  # type: ignore[arg-type]


def test_unknown_backend() -> None:
    with pytest.raises(InvalidArgumentError, match="'mesos'"):
        launch(LaunchPlan(script="t.py", data="d", backend="mesos"))


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LaunchError, match=r"pip install 'graphlearn_dist\[ray\]'"):
        launch(LaunchPlan(script="t.py", data="d", backend="ray"))


def test_exit_codes_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(137) == "was killed by SIGKILL"
    assert describe_exit(FROZEN) == "froze and was killed"
    assert describe_exit(255) == "exited with code 255"


# --- restarts ---------------------------------------------------------------------------------------------------

MORTAL = """
import os, signal, socket
listener = socket.socket(fileno=int(os.environ["GLD_MASTER_FD"]))
print("incarnation", os.environ.get("GLD_RESTARTS", "0"), flush=True)
with listener.accept()[0] as trainer:
    if trainer.recv(1):
        os.kill(os.getpid(), signal.SIGKILL)
"""

KILLER = """
import os, socket, sys
address = os.environ["GLD_MASTER_ADDR"], int(os.environ["GLD_MASTER_PORT"])
for _ in range(int(sys.argv[1])):
    with socket.create_connection(address, 60) as server:
        server.sendall(b"x")
        server.recv(1)  # until it is dead
print("news", os.read(int(os.environ["GLD_MESSAGES_FD"]), 1000) if len(sys.argv) > 2 else None, flush=True)
if len(sys.argv) > 2:
    raise SystemExit(7)
with socket.create_connection(address, 60) as server:
    server.shutdown(socket.SHUT_WR)
    server.recv(1)  # until it has ended well: it is not started again for a job whose trainers have ended
"""


def test_a_killed_server_is_started_again_on_the_same_port(job: Job) -> None:
    """Who connects while it is away waits in the queue of the socket that the launcher keeps."""
    done = job.run("--server-script", job.script("mortal.py", MORTAL), job.script("killer.py", KILLER), "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "incarnation" in line] == [
        f"[server 0] incarnation {count}" for count in range(3)
    ]
    assert [line for line in lines if line.startswith("[launcher]")] == [
        f"[launcher] server 0 was killed by SIGKILL; starting it again ({count} of 3 times)" for count in (1, 2)
    ]
    assert job.alive() == []


@pytest.mark.parametrize("backend", ["local", "ssh"])
def test_a_server_that_is_killed_too_often_is_given_up(job: Job, shim: str, backend: str) -> None:
    """The trainer is told through its pipe, and has time to fail with what it makes of that."""
    mortal, killer = job.script("mortal.py", MORTAL), job.script("killer.py", KILLER)
    places = []
    if backend == "ssh":
        places = ["--on", "ssh", "--ssh", shim, "--hosts", job.script("hosts", "a\n")]
        mortal = job.script("mortal.py", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    times = "0" if backend == "ssh" else "2"
    done = job.run(*places, "--max-restarts", "1", "--server-script", mortal, killer, times, "told")
    assert done.returncode == 137
    assert done.stderr.startswith("graphlearn-dist: server 0 ")
    assert "was killed by SIGKILL" in done.stderr
    why = "it was killed by SIGKILL; max_restarts=1 within an hour are used up"
    news = json.dumps({"role": "server", "rank": 0, "why": why}) + "\n"
    assert f"[trainer 0] news {news.encode()!r}" in done.stdout.splitlines()
    assert job.alive() == []


def test_the_token_is_the_first_line_of_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the launcher is: the wrapper of an ssh writes signs of life there as soon as it runs."""
    first: list[bytes] = []

    def start(argv: list[str], *, stdin: int, **_: Any) -> Any:
        assert "--beat" in argv
        os.write(int(argv[argv.index("--beat") + 1]), b"\n")
        first.append(os.read(stdin, 1000))
        return SimpleNamespace(stdin=None)

    monkeypatch.setattr(subprocess, "Popen", start)
    spec = ProcessSpec("trainer", 0, "a", ["true"], {})
    with LocalBackend(b"secret").open(spec, spec.command, {}, ["--link", "0"]).stdin:  # type: ignore[union-attr]
        assert first == [b"secret\n\n"]


def test_a_server_that_freezes_is_killed(job: Job, shim: str) -> None:
    """On the other host, once it has given signs of life; one that gives none, here the trainer, is left alone."""
    freezes = """
        import os, signal
        os.write(int(os.environ["GLD_PULSE_FD"]), b".")
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    places = ["--on", "ssh", "--ssh", shim, "--hosts", job.script("hosts", "a\n"), "--heartbeat-timeout", "1.5"]
    server, trainer = job.script("freezes.py", freezes), job.script("killer.py", KILLER)
    done = job.run(*places, "--max-restarts", "0", "--server-script", server, trainer, "0", "told")
    assert done.returncode == FROZEN
    assert done.stderr.startswith("graphlearn-dist: server 0 on a froze and was killed; max_restarts=0")
    assert "it froze and was killed; max_restarts=0 within an hour are used up" in done.stdout
    assert job.alive() == []


def test_a_server_whose_interpreter_is_stuck_is_killed(job: Job) -> None:
    """Its process lives on, as the launcher sees, and what it does keeps all of Python from running."""
    stuck = """
        import ctypes, os
        from graphlearn_dist.distributed.workers.pulse import start_pulse
        pulse = int(os.environ["GLD_PULSE_FD"])
        start_pulse(pulse)
        os.write(pulse, b"+")
        ctypes.PyDLL(None).sleep(300)
    """
    limits = ["--heartbeat-timeout", "60", "--interpreter-timeout", "1.5", "--max-restarts", "0"]
    server, trainer = job.script("stuck.py", stuck), job.script("killer.py", KILLER)
    done = job.run(*limits, "--server-script", server, trainer, "0", "told")
    assert done.returncode == FROZEN
    assert "server 0 froze and was killed; max_restarts=0" in done.stderr
    assert "  its interpreter ran nothing for 1.5 s: it is killed" in done.stderr.splitlines()
    assert job.alive() == []
