"""Runs one command and sees to it that nothing of it outlives its launcher.

Started by file name, before everything else of the package: imports the standard library only, and little of that.

    python child.py [--parent PID] [--share-cores N] [--stop-s S] [--pulse-s S] [--interpreter-s S]
        [--link 0] -- command [arguments]

The command runs in a process group of its own. It is sent SIGTERM when this process gets SIGTERM, SIGINT or SIGHUP
(a terminal that closed), or when the parent dies in whatever way; what is left ``S`` seconds later, or at a second
signal, is killed. When the command ends, its surviving descendants are killed, and this process exits with its code
(128 + n for signal n).

With ``--pulse-s``, the command finds in ``GLD_PULSE_FD`` a pipe for signs of life: ``.`` where the process runs, ``+``
where its interpreter does. Once it has written a sign there it has to go on doing so: when ``.`` did not come for
``--pulse-s`` seconds, or ``+`` for ``--interpreter-s``, it is frozen, is killed, and this process exits with
``FROZEN``.

Standard input is the link to the launcher, unless ``--link 0`` is given. Its first line is the job's token, which the
command finds in ``GLD_TOKEN``, or empty. What follows is passed on to the command, through the pipe whose descriptor it
finds in ``GLD_NEWS_FD``. When the link closes, because the launcher or the connection is gone, the command is told to
stop as by a signal.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

FROZEN = 128 + signal.SIGSTOP  # an exit code that no signal gives
_SIGNS = {b".": "no sign of life", b"+": "its interpreter ran nothing"}  # and what their silence is
_LATE_S = 2.0  # two looks at the pulse that are so far apart mean that this process was stopped itself
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = (*_STOP_SIGNALS, signal.SIGCHLD)
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def _parse(argv: Sequence[str]) -> tuple[dict[str, float], list[str]]:
    end = argv.index("--")
    options = {"--parent": 0.0, "--share-cores": 0.0, "--stop-s": 5.0, "--link": 1.0}
    options |= {"--pulse-s": 0.0, "--interpreter-s": 0.0}
    for name, value in zip(argv[:end:2], argv[1:end:2], strict=True):
        options[name] = float(value)
    return options, list(argv[end + 1 :])


def _read_token() -> bytes:
    """The first line of standard input, read byte by byte: what follows it is not ours to take."""
    token = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        token += byte
    return token


def _forward_news(news: int) -> bool:
    """Passes on what has come over the link; False when the launcher's end is gone."""
    if not select.select([0], [], [], 0)[0]:
        return True
    text = os.read(0, 4096)
    with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the command does not read it, or has closed it
        os.write(news, text)
    return text != b""


class _Pulse:
    """The signs of life of a command, each from its first on; one that gives none, or no more, is not watched.

    Args:
        descriptor: where they come.
        limits_s: by sign, how long a silence may last; 0: for ever.
    """

    def __init__(self, descriptor: int, limits_s: dict[bytes, float]) -> None:
        self._descriptor = descriptor
        self._limits_s = {sign: limit_s for sign, limit_s in limits_s.items() if limit_s}
        self._heard = dict.fromkeys(self._limits_s, float("inf"))
        self._looked = time.monotonic()
        os.set_blocking(descriptor, False)

    def stopped(self) -> str:
        """What has stopped, in words, or ""; to be asked every second or more often."""
        now = time.monotonic()
        was_stopped, self._looked = now - self._looked > _LATE_S, now
        signs = self._read()
        for sign, limit_s in self._limits_s.items():
            if signs == b"":
                self._heard[sign] = float("inf")
            elif signs is not None and sign in signs:
                self._heard[sign] = now
            elif was_stopped:
                self._heard[sign] = max(self._heard[sign], now)
            if now - self._heard[sign] > limit_s:
                return f"{_SIGNS[sign]} for {limit_s:g} s"
        return ""

    def _read(self) -> bytes | None:
        """What has come; None for nothing, "" where nothing can come any more."""
        try:
            return os.read(self._descriptor, 4096)
        except BlockingIOError:
            return None


def _start(command: list[str], descriptors: dict[str, int], *, linked: bool) -> int:
    """Starts the command; ``descriptors`` are what it finds under these names in its environment."""
    me = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setpgid(0, 0)
        if linked:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name, descriptor in descriptors.items():
            os.set_inheritable(descriptor, True)
            os.environ[name] = str(descriptor)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should this process itself be killed
        if os.getppid() != me:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _kill_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody left in it
        os.killpg(pid, signum)


def _has_ended(pid: int) -> bool:
    """Whether the command has ended; it is not reaped yet. Other children, orphans of its, are."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
        if ended.si_pid == pid:
            return True
        os.waitpid(ended.si_pid, 0)
    return False


def _watch(pid: int, stop_s: float, news: int, pulse: _Pulse, *, linked: bool) -> int:
    """Waits for the command, passing signals on; returns its exit code."""
    kill_at = float("inf")
    is_frozen = False
    # Not reaped before its group is killed: until then nobody else can get its number.
    while not _has_ended(pid):
        now = time.monotonic()
        if now >= kill_at:
            _kill_group(pid, signal.SIGKILL)
        elif stopped := pulse.stopped():
            os.write(2, f"{stopped}: it is killed\n".encode())
            is_frozen, kill_at = True, 0.0
            continue
        wait_s = 0.1 if now >= kill_at else min(1.0, kill_at - now)
        arrived = signal.sigtimedwait(_WATCHED, wait_s)
        if linked and not _forward_news(news):
            linked = False
        elif arrived is None or arrived.si_signo not in _STOP_SIGNALS:
            continue
        if kill_at == float("inf"):
            kill_at = time.monotonic() + stop_s
            os.kill(pid, signal.SIGTERM)
        else:
            kill_at = 0.0
    _kill_group(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return FROZEN if is_frozen else code if code >= 0 else 128 - code


def _kill_descendants() -> None:
    """Kills what has left the group: orphans come to this process, which is their subreaper."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                orphans = [int(word) for word in file.read().split()]
        except FileNotFoundError:  # a kernel without it
            return
        for orphan in orphans:
            os.kill(orphan, signal.SIGKILL)
        try:
            while os.waitpid(-1, 0 if orphans else os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # none left
            return


def main(argv: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    options, command = _parse(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    for signum in _WATCHED:  # an ignored signal (nohup) would not arrive even here
        signal.signal(signum, signal.SIG_DFL)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if options["--parent"]:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(options["--parent"]):  # it died before the line above
            return 1
    if options["--share-cores"]:
        cores = len(os.sched_getaffinity(0)) // int(options["--share-cores"])
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
    linked = bool(options["--link"])
    if linked and (token := _read_token()):
        os.environb[b"GLD_TOKEN"] = token
        os.environ.pop("GLD_TOKEN_FILE", None)  # the launcher's own; this host may have another, or none
    (news, to_command), (pulse, to_us) = os.pipe(), os.pipe()
    given = ({"GLD_NEWS_FD": news} if linked else {}) | ({"GLD_PULSE_FD": to_us} if options["--pulse-s"] else {})
    pid = _start(command, given, linked=linked)
    os.dup2(to_command, 3)
    os.dup2(pulse, 4)
    os.closerange(5, 256)  # an inherited socket is the command's alone: its port must close when it ends
    os.set_blocking(3, False)
    signs = _Pulse(4, {b".": options["--pulse-s"], b"+": options["--interpreter-s"]})
    code = _watch(pid, options["--stop-s"], 3, signs, linked=linked)
    _kill_descendants()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
