"""Runs one command and sees to it that nothing of it outlives its launcher.

Started by file name, before everything else of the package: imports the standard library only, and little of that.

    python wrapper.py [--name NAME] [--job ID] [--parent PID] [--share-cores N] [--stop-s S] [--pulse 1] [--pulse-s S]
        [--interpreter-s S] [--launcher-s S] [--tell 1] [--beat FD] [--link 0] -- command [arguments]

The command runs in a process group of its own. It is sent SIGTERM when this process gets SIGTERM, SIGINT or SIGHUP
(a terminal that closed), or when the parent dies in whatever way; what is left ``S`` seconds later, or at a second
signal, is killed. When the command ends, its surviving descendants are killed, and this process exits with its code
(128 + n for signal n).

With ``--pulse 1``, the command finds in ``GLD_PULSE_FD`` a pipe for signs of life: ``.`` where the process runs, ``+``
where its interpreter does. Once it has written a sign there it has to go on doing so: when ``.`` did not come for
``--pulse-s`` seconds, or ``+`` for ``--interpreter-s`` (0: never), it is frozen, is killed, and this process exits with
``FROZEN``.

Standard input is the link to the launcher, unless ``--link 0`` is given. Its first line is the job's token, which the
command finds in ``GLD_TOKEN``, or empty. Of the lines that follow, an empty one is a sign of life of the launcher,
``stop`` and ``kill`` are what a first and a second signal are, and others are messages for the command, which go by
the pipe whose descriptor it finds in ``GLD_MESSAGES_FD``. When the link closes, because the launcher or the
connection is gone, or with ``--launcher-s`` nothing came over it for so many seconds, the command is told to stop as by
a signal.

Words for the launcher are mixed into standard output, each between ``SIGN_BEGINS`` and ``SIGN_ENDS``: ``ready`` when
the command has given its first sign of life; with ``--tell 1``, the far end of a connection, also ``started``, ``.``
every second, and ``ended CODE`` when nothing is left. At the near end ``--beat`` has this process write the launcher's
signs of life there, an empty line every second: they do not stop where the launcher is stopped, by Ctrl-Z.

With ``--job`` there is one process of that job and name on a host: one that comes later ends one that is still there,
left behind by a connection that broke.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Sequence

SIGN_BEGINS, SIGN_ENDS = b"\x1e", b"\x1f"
FROZEN = 128 + signal.SIGSTOP  # an exit code that no signal gives
_SIGNS = {b".": "no sign of life", b"+": "its interpreter ran nothing"}  # and what their silence is
_LATE_S = 2.0  # two looks at the pulse that are so far apart mean that this process was stopped itself
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = (*_STOP_SIGNALS, signal.SIGCHLD)
_BEAT_S = 1.0
_LAST_WORD_S = 5.0  # for the last word to get into a pipe that is full
_PREDECESSOR_S = 10.0  # for one that was left behind to end
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class _Options:
    """The options of the command line, and the command."""

    def __init__(self, argv: Sequence[str]) -> None:
        end = argv.index("--")
        self._given = dict(zip(argv[:end:2], argv[1:end:2], strict=True))
        self.command = list(argv[end + 1 :])
        self.name = self._given.get("--name", "")
        self.job = self._given.get("--job", "")
        self.parent = int(self._number("--parent"))
        self.share_cores = int(self._number("--share-cores"))
        self.stop_s = self._number("--stop-s", 5.0)
        self.linked = bool(self._number("--link", 1.0))
        self.has_pulse = bool(self._number("--pulse"))
        self.pulse_s = self._number("--pulse-s")
        self.interpreter_s = self._number("--interpreter-s")
        self.launcher_s = self._number("--launcher-s")
        self.tells = bool(self._number("--tell"))
        self.beat = int(self._number("--beat", -1.0))

    def _number(self, name: str, default: float = 0.0) -> float:
        return float(self._given.get(name, default))


def _read_token() -> bytes:
    """The first line of standard input, read byte by byte: what follows it is not ours to take."""
    token = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        token += byte
    return token


class _Link:
    """What comes from the launcher, on standard input.

    Args:
        messages: a pipe to the command, or -1 where nothing comes.
        limit_s: how long a silence may last; 0: for ever.
    """

    def __init__(self, messages: int, limit_s: float) -> None:
        self._messages = messages
        self._limit_s = limit_s
        self._line = b""
        self._heard = self._looked = time.monotonic()
        self.is_open = messages >= 0

    @property
    def sources(self) -> list[int]:
        """What becomes readable when something comes."""
        return [0] if self.is_open else []

    def requests(self) -> list[bytes]:
        """What the launcher asks for since the last time: ``stop``, ``kill``; its end is ``stop`` too.

        To be asked every second or more often.
        """
        now = time.monotonic()
        if now - self._looked > _LATE_S:  # this process was stopped itself
            self._heard = now
        self._looked = now
        if not self.is_open:
            return []
        if not select.select([0], [], [], 0)[0]:
            return self._judge(now)
        self._heard = now
        text = os.read(0, 4096)
        if not text:
            self.is_open = False
            return [b"stop"]
        *lines, self._line = (self._line + text).split(b"\n")
        asked = [line for line in lines if line in (b"stop", b"kill")]
        self._forward([line for line in lines if line and line not in asked])
        return asked

    def _judge(self, now: float) -> list[bytes]:
        if not self._limit_s or now - self._heard <= self._limit_s:
            return []
        self.is_open = False
        _complain(f"no sign of life of the launcher for {self._limit_s:g} s: it is stopped")
        return [b"stop"]

    def _forward(self, messages: list[bytes]) -> None:
        if messages:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # the command does not read, or has closed it
                os.write(self._messages, b"".join(line + b"\n" for line in messages))


def _complain(text: str) -> None:
    """A line among those of the command; whoever does not read them must not hold this process up."""
    if select.select([], [2], [], 0)[1]:
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode())


class _Voice:
    """Words for the launcher, on standard output, which nobody may be reading at the moment."""

    def __init__(self) -> None:
        mode = os.fstat(1).st_mode
        self._socket = socket.socket(fileno=os.dup(1)) if stat.S_ISSOCK(mode) else None
        self.descriptor = 1 if self._socket is None else self._socket.fileno()
        if stat.S_ISFIFO(mode):  # a description of its own: that of the command has to stay as it is
            self.descriptor = os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NONBLOCK)

    def say(self, word: str) -> bool:
        """Whether it got into the pipe."""
        sign = SIGN_BEGINS + word.encode() + SIGN_ENDS
        try:
            if self._socket is not None:
                self._socket.send(sign, socket.MSG_DONTWAIT)
            else:
                os.write(self.descriptor, sign)
        except BlockingIOError:
            return False
        except OSError:  # nobody is there any more
            pass
        return True

    def say_last(self, word: str) -> None:
        """As ``say``, and waits a while for room."""
        deadline = time.monotonic() + _LAST_WORD_S
        while not self.say(word) and time.monotonic() < deadline:
            select.select([], [1], [], 0.1)


class _Pulse:
    """The signs of life of a command, each from its first on; one that gives none, or no more, is not watched.

    Args:
        descriptor: where they come.
        limits_s: by sign, how long a silence may last; 0: for ever.
    """

    def __init__(self, descriptor: int, limits_s: dict[bytes, float]) -> None:
        self.has_begun = False
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
        self.has_begun |= bool(signs)
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


def _start(options: _Options, descriptors: dict[str, int]) -> int:
    """Starts the command; ``descriptors`` are what it finds under these names in its environment."""
    me = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    command = options.command
    try:
        os.setpgid(0, 0)
        if options.linked:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for name, descriptor in descriptors.items():
            os.set_inheritable(descriptor, True)
            os.environ[name] = str(descriptor)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # should this process itself be killed
        if os.getppid() != me:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for signum in _WATCHED:  # before they are let in, or one of them would be lost
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"cannot run {command[0]}: {error.strerror}\n".encode())
    os._exit(127)


class _Signals:
    """Signals of this process, as bytes of a pipe: so that it can wait for them beside other things."""

    def __init__(self) -> None:
        self.descriptor, writer = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(writer, False)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)  # until the command is started
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for signum in _WATCHED:  # an ignored signal (nohup) would not arrive even here
            signal.signal(signum, lambda *_: None)
        self.descriptors = (self.descriptor, writer)

    def let_in(self) -> None:
        """Those that have come meanwhile come now."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)

    def stops(self) -> int:
        """How many have come that ask this process to end."""
        try:
            return sum(byte in _STOP_SIGNALS for byte in os.read(self.descriptor, 4096))
        except BlockingIOError:
            return 0


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


class _Watch:
    """Waits for a command, and passes on what it is asked to do.

    Args:
        pid: the command.
        options: of this process.
        signals: that come to it.
        link: from the launcher.
        pulse: of the command.
        name: where one that comes later asks for its place.
    """

    def __init__(self, pid: int, options: _Options, signals: _Signals, link: _Link, pulse: _Pulse, name: _Name) -> None:
        self._pid = pid
        self._options = options
        self._signals = signals
        self._link = link
        self._pulse = pulse
        self._name = name
        self._is_ready = False
        self._kill_at = float("inf")
        self._beat_at = 0.0

    def wait(self, voice: _Voice) -> int:
        """Returns its exit code; ``voice`` tells the launcher of it meanwhile."""
        is_frozen = False
        # Not reaped before its group is killed: until then nobody else can get its number.
        while not _has_ended(self._pid):
            now = time.monotonic()
            if now >= self._kill_at:
                _kill_group(self._pid, signal.SIGKILL)
            elif stopped := self._pulse.stopped():
                _complain(f"{stopped}: it is killed")
                is_frozen, self._kill_at = True, 0.0
                continue
            self._give_signs(voice, now)
            wait_s = 0.1 if now >= self._kill_at else min(1.0, self._kill_at - now)
            sources = [self._signals.descriptor, *self._link.sources, *self._name.sources]
            select.select(sources, [], [], wait_s)
            for _ in range(self._signals.stops()):
                self._end()
            for asked in self._link.requests():
                self._end(at_once=asked == b"kill")
            if self._name.is_wanted():
                _complain("another process has come in its place: it is killed")
                self._end(at_once=True)
        _kill_group(self._pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return FROZEN if is_frozen else code if code >= 0 else 128 - code

    def _end(self, *, at_once: bool = False) -> None:
        if at_once or self._kill_at != float("inf"):
            self._kill_at = 0.0
        else:
            self._kill_at = time.monotonic() + self._options.stop_s
            os.kill(self._pid, signal.SIGTERM)

    def _give_signs(self, voice: _Voice, now: float) -> None:
        if self._pulse.has_begun and not self._is_ready:
            self._is_ready = voice.say("ready")
        if now < self._beat_at:
            return
        self._beat_at = now + _BEAT_S
        if self._options.tells:
            voice.say(".")
        beat = self._options.beat
        if beat >= 0 and select.select([], [beat], [], 0)[1]:
            with contextlib.suppress(BrokenPipeError):  # the command ends
                os.write(beat, b"\n")


class _Name:
    """A name that one process of a host has at a time: who comes later gets it, and the other ends.

    Args:
        name: the name, or empty.
    """

    def __init__(self, name: str) -> None:
        self._listener = self._take(f"\0{name}") if name else None
        self._successor: socket.socket | None = None  # it sees our end by the end of this connection

    @property
    def sources(self) -> list[int]:
        """What becomes readable when somebody comes."""
        return [self._listener.fileno()] if self._listener is not None else []

    def is_wanted(self) -> bool:
        """Whether somebody has come for the name."""
        if self._listener is None or not select.select([self._listener], [], [], 0)[0]:
            return False
        other, _ = self._listener.accept()
        if not _is_same_user(other):
            other.close()
            return False
        self._successor = other
        return True

    @staticmethod
    def _take(name: str) -> socket.socket | None:
        """None where the other one does not end in time."""
        deadline = time.monotonic() + _PREDECESSOR_S
        while time.monotonic() < deadline:
            listener = socket.socket(socket.AF_UNIX)
            try:
                listener.bind(name)
                listener.listen(4)
            except OSError:
                listener.close()
            else:
                return listener
            with socket.socket(socket.AF_UNIX) as before, contextlib.suppress(OSError):
                before.settimeout(max(0.1, deadline - time.monotonic()))
                before.connect(name)
                if not _is_same_user(before):
                    return None
                before.recv(1)  # until it is gone
        return None


def _is_same_user(sock: socket.socket) -> bool:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


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
    options = _Options(argv)
    signals = _Signals()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    if options.parent:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != options.parent:  # it died before the line above
            return 1
    if options.share_cores:
        cores = len(os.sched_getaffinity(0)) // options.share_cores
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
    if options.linked and (token := _read_token()):
        os.environb[b"GLD_TOKEN"] = token
        os.environ.pop("GLD_TOKEN_FILE", None)  # the launcher's own; this host may have another, or none
    voice = _Voice()
    if options.tells:
        voice.say("started")
    name = _Name(f"gld-{options.job}-{options.name}" if options.job else "")
    if options.beat >= 0:
        os.set_inheritable(options.beat, False)
    (messages, to_command), (pulse, to_us) = os.pipe(), os.pipe()
    given = {"GLD_MESSAGES_FD": messages} if options.linked else {}
    pid = _start(options, given | ({"GLD_PULSE_FD": to_us} if options.has_pulse else {}))
    # an inherited socket is the command's alone: its port must close when it ends
    _close_but({0, 1, 2, to_command, pulse, options.beat, voice.descriptor, *signals.descriptors, *name.sources})
    os.set_blocking(to_command, False)
    link = _Link(to_command if options.linked else -1, options.launcher_s)
    signs = _Pulse(pulse, {b".": options.pulse_s, b"+": options.interpreter_s})
    signals.let_in()
    code = _Watch(pid, options, signals, link, signs, name).wait(voice)
    _kill_descendants()
    if options.tells:
        voice.say_last(f"ended {code}")
    return code


def _close_but(kept: set[int]) -> None:
    for descriptor in range(3, 256):
        if descriptor not in kept:
            with contextlib.suppress(OSError):  # it is not open
                os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
