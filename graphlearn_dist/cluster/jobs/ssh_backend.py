"""Jobs over ssh: each process at the end of a connection of its own, which it outlives by a stated time at most."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path

from ...config import TLS_VARIABLES
from ...errors import InvalidArgumentError, LaunchError
from .backend import LOST, Listener, LocalBackend, RunningProcess, Subprocess, watching, wrapper
from .checks import check, master_address, network_environ, questions
from .plan import LaunchPlan, Master, ProcessSpec
from .probe import ANSWER_BEGINS, Answer, Question

_PROBE = str(Path(__file__).with_name("probe.py"))
_FORWARDED = ("PYTHONPATH", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", *TLS_VARIABLES)
_SSH_FAILED = 255  # its exit code where it is not that of the command
_ANSWER_S = 60.0  # for a host to say what it has
_LOOK_S = 0.2


class _SshProcess(Subprocess):
    """An ssh of this machine. What it leads to is asked over the link, and says when it has ended."""

    def __init__(self, spec: ProcessSpec, popen: subprocess.Popen[bytes], listener: Listener) -> None:
        self._has_started = False
        self._ended: int | None = None
        super().__init__(spec, popen, listener)

    def _on_sign(self, spec: ProcessSpec, listener: Listener, sign: str) -> None:
        self._has_started = True
        word, _, code = sign.partition(" ")
        if word == "ended":
            self._ended = int(code)
        listener.on_sign(spec, word)

    def _exit_code(self, code: int) -> int:
        if self._ended is not None:
            return self._ended
        return LOST if self._has_started or code >= _SSH_FAILED else code

    def stop(self) -> None:
        if self._has_started:
            self.tell("stop")
        else:  # the end of the connection says it to one that is about to start
            self.abandon()

    def kill(self) -> None:
        if self._has_started:
            self.tell("kill")
        else:
            self.abandon()

    def abandon(self) -> None:
        super().kill()


class SshBackend(LocalBackend):
    """Processes on other machines, each at the end of an ssh connection.

    Python, the package and the working directory must be at the same paths on every host. A process's link, and with it
    the job's token, goes through its ssh connection, and so do signs of life both ways. A process ends when its
    connection closes, or when no sign has come for ``launcher_timeout_s``, whatever ssh knows of that.

    Args:
        ssh: the ssh command with its options.
    """

    def __init__(self, ssh: str) -> None:
        super().__init__()
        self._ssh = shlex.split(ssh)
        if not self._ssh:
            raise InvalidArgumentError(f"ssh: expected a command, got {ssh!r}")
        self._job = secrets.token_hex(8)
        self._hosts: list[str] = []
        self._answers: dict[str, Answer] = {}

    def check(self, plan: LaunchPlan, is_called_off: Callable[[], bool]) -> None:
        """Asks all hosts at the same time what they have."""
        placement = plan.placement()
        asked = questions(plan, placement, [plan.registry_port, plan.registry_port + 1])
        self._hosts = list(asked)
        self._answers = self._ask(asked, is_called_off)
        if not is_called_off():
            check(plan, placement, self._answers)

    def _ask(self, questions: Mapping[str, Question], is_called_off: Callable[[], bool]) -> dict[str, Answer]:
        asked = {host: self._open_probe(host, question) for host, question in questions.items()}
        deadline = time.monotonic() + _ANSWER_S
        with ThreadPoolExecutor(len(asked)) as threads:
            said = {host: threads.submit(probe.communicate) for host, probe in asked.items()}
            while wait(said.values(), _LOOK_S).not_done and not is_called_off() and time.monotonic() < deadline:
                pass
            late = [host for host, future in said.items() if not future.done()]
            for host in late:
                asked[host].kill()
        if is_called_off():
            return {}
        failed = [f"{host}: gave no answer over ssh within {_ANSWER_S:g} s" for host in late]
        answers = {}
        for host, future in said.items():
            answer = _read_answer(future.result()[0])
            if answer is not None:
                answers[host] = answer
            elif host not in late:
                failed.append(_why_no_answer(host, asked[host].returncode, future.result()[1]))
        if failed:
            raise LaunchError("\n".join(failed))
        return answers

    def _open_probe(self, host: str, question: Question) -> subprocess.Popen[str]:
        command = [sys.executable, "-I", "-S", _PROBE, json.dumps(asdict(question))]
        try:
            return subprocess.Popen(
                [*self._ssh, "-T", host, remote_command(command, {})],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for the launcher, which ends it
            )
        except OSError as error:
            raise LaunchError(f"ssh: cannot run {self._ssh[0]}: {error.strerror}") from error

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        """The given port of the host of server 0."""
        yield Master(master_address(self._hosts, self._answers), plan.registry_port, plan.registry_port + 1)

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        env = dict(spec.env)
        if spec.role == "trainer":  # what the user says comes first
            given = {**network_environ(spec.host, self._hosts, self._answers), **_forwarded()}
            env = {**given, **env}
        options = ["--launcher-s", str(spec.launcher_timeout_s), "--tell", "1", "--job", self._job]
        far = [*wrapper(spec, *watching(spec), *options), "--", *spec.command]
        # No terminal: the standard input stays a pipe, whose end tells the other side that we are gone.
        command = [*self._ssh, "-T", spec.host, remote_command(far, env)]
        return _SshProcess(spec, self.open(spec, command, os.environ, ["--link", "0"]), listener)


def _forwarded() -> dict[str, str]:
    return {name: os.environ[name] for name in _FORWARDED if name in os.environ}


def remote_command(command: list[str], env: Mapping[str, str]) -> str:
    """The command line for the shell of another host."""
    assignments = [f"{name}={value}" for name, value in {**_forwarded(), **env}.items()]
    return f"cd {shlex.quote(os.getcwd())} && exec {shlex.join(['env', *assignments, *command])}"


def _read_answer(output: str) -> Answer | None:
    for line in output.splitlines():
        if line.startswith(ANSWER_BEGINS):
            return Answer(**json.loads(line[len(ANSWER_BEGINS) :]))
    return None


def _why_no_answer(host: str, code: int, errors: str) -> str:
    said = errors.strip().splitlines()
    last = said[-1] if said else f"exit code {code} without a word"
    if code == _SSH_FAILED:
        return f"{host}: cannot be reached by ssh: {last}"
    return f"{host}: {last}; Python, the package and the working directory must be at the same paths on every host"
