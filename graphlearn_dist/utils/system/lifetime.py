"""What is of use in one process only, and until that process ends."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, NoReturn

from ...errors import ForkedProcessError, NotInitializedError, NotPicklableError, SystemLimitError

_LEAVE_S = 5.0  # how long the end of a process waits for its threads to come to where they may be stopped


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        SystemLimitError: the system has none to give: a limit of the user or of the control group is reached.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise SystemLimitError(
            f"{thread.name}: {error}: the system gives none now (see ulimit -u, and pids.max of the control group)"
        ) from error


class Home:
    """The process of an object that has threads, sockets or workers. Others refer to it before they are used.

    A fork has a copy of the object and of its descriptors, but not of its threads. What it sent would go out on its
    parent's connections, and what it waited for would never come. So there every use is an error, and nothing is done
    to close or to free the object, which is still the parent's.

    At the end of the process threads are stopped before the interpreter is (see ``Threads``), and it is the same then.

    Args:
        name: what the object is called in errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this is the object's process, even where its threads have been stopped."""
        return os.getpid() == self._pid

    @property
    def is_here(self) -> bool:
        """Whether there is anything to close: this is the object's process, and its threads still run."""
        return self.is_own and not threads.are_stopped

    def check_own(self) -> None:
        """To be called before an object is used whose threads run to the very end.

        Raises:
            ForkedProcessError: this process is a fork of the object's.
        """
        if os.getpid() != self._pid:
            raise ForkedProcessError(
                f"{self._name} belongs to process {self._pid}, and process {os.getpid()} is a fork of that, without "
                "its threads and connections: make another one here, or use it where it was made (num_workers=0 of a "
                "torch or PyG DataLoader; loaders make batches ahead by themselves)"
            )

    def check(self) -> None:
        """To be called before the object is used.

        Raises:
            ForkedProcessError: this process is a fork of the object's.
            NotInitializedError: the process is about to end, and its threads have been stopped. Only where that is
                done by an atexit handler; a daemon thread that comes so late is stopped too.
        """
        if os.getpid() != self._pid:
            self.check_own()
        if threads.are_stopped:
            threads.stop_late_comer()
            raise NotInitializedError(
                f"{self._name} cannot be used any more: this process is about to end, and its threads have been "
                "stopped; an atexit handler may use it where it is registered after graphlearn_dist is imported"
            )

    def refuse_pickling(self) -> NoReturn:
        """For ``__reduce__``: pickling and copying the object are a ``NotPicklableError``."""
        raise NotPicklableError(
            f"{self._name} cannot be pickled or copied, as it has threads, connections or a place in an epoch of its "
            "own: give the other process what it is made of (the data set or its directory, and the arguments) and "
            "make another one there; beside a torch DataLoader use num_workers=0, and state_dict() to go on elsewhere"
        )


class _Busy:
    """A thread that must not be stopped where it is."""

    __slots__ = ("ask", "depth", "phase")

    def __init__(self, phase: int, ask: Callable[[Callable[[], None]], Any] | None) -> None:
        self.phase = phase
        self.ask = ask
        self.depth = 1


class Section:
    """A part of the program that the end of the process lets a thread leave before it stops the thread.

    Args:
        owner: of all sections.
        phase: threads of phase 1 are stopped before those of phase 2.
        ask: makes the thread call a function that stops it, where it does not leave the section by itself.
    """

    def __init__(self, owner: Threads, phase: int, ask: Callable[[Callable[[], None]], Any] | None = None) -> None:
        self._owner = owner
        self._phase = phase
        self._ask = ask

    def __enter__(self) -> None:
        busy, me = self._owner.busy, threading.get_ident()
        mine = busy.get(me)
        if mine is not None:
            mine.depth += 1
            return
        busy[me] = _Busy(self._phase, self._ask)  # and then looks: the stopper sets the phase, and then looks here
        if self._owner.phase >= self._phase:
            self._owner.stop_late_comer()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        busy, me = self._owner.busy, threading.get_ident()
        mine = busy.get(me)
        if mine is None:  # a fork that was made in the section
            return
        mine.depth -= 1
        if mine.depth > 0:
            return
        del busy[me]  # and then looks, as above
        if self._owner.phase >= mine.phase:
            self._owner.stop_late_comer()


class Threads:
    """Stops threads at the end of the process, where they do no harm.

    A daemon thread that still runs when the interpreter ends is ended wherever it asks for the GIL next. Where that is
    below native code (of ours: see ``bindings/gil.h``; of torch), whose destructors cannot be left so, the process
    aborts with SIGABRT, though the program had ended well. So the threads that make batches, and daemon threads of the
    program that read them, are stopped just before, at a place that is pure Python: where they leave a section, or
    would enter one. Whoever takes too long is not waited for.

    Attributes:
        are_stopped: whether that is done.
        busy: by thread, the section that it is in; each thread changes its own entry alone.
        phase: threads of sections up to this one are being stopped.
    """

    def __init__(self) -> None:
        self.calls: Final = Section(self, 1)
        """Of those who want batches, in threads of the program."""
        self.work: Final = Section(self, 2)
        """Of this package's own threads, which the former wait for."""
        self._forget()

    def _forget(self) -> None:
        """Begins anew, as a process without threads: also in a fork."""
        self.are_stopped = False
        self.busy: dict[int, _Busy] = {}
        self.phase = 0
        self._stopper = 0
        self._left = threading.Event()

    def work_of_loop(self, ask: Callable[[Callable[[], None]], Any]) -> Section:
        """The section of a thread that runs an event loop; ``ask`` makes the loop call a function."""
        return Section(self, 2, ask)

    def stop_late_comer(self) -> None:
        """Stops the calling thread when the others are stopped, unless it is the one that ends the process."""
        if threading.get_ident() != self._stopper:
            self._stop_here()

    def _stop_here(self) -> NoReturn:
        self.busy.pop(threading.get_ident(), None)
        self._left.set()
        never = threading.Lock()
        never.acquire()
        while True:
            never.acquire()

    def stop(self) -> None:
        """Stops all threads that are in a section, or come to one, but for the calling one."""
        self._stopper = threading.get_ident()
        give_up = time.monotonic() + _LEAVE_S
        for phase in (1, 2):
            self.phase = phase
            for busy in self._others(phase):
                if busy.ask is not None:
                    busy.ask(self._stop_here)
            while self._others(phase) and (left_s := give_up - time.monotonic()) > 0:
                self._left.wait(left_s)
                self._left.clear()
        self.are_stopped = True

    def _others(self, phase: int) -> list[_Busy]:
        return [busy for me, busy in list(self.busy.items()) if busy.phase <= phase and me != self._stopper]


threads: Final = Threads()
# At import, so that it comes after what a program registers later, which may still use loaders.
atexit.register(threads.stop)
os.register_at_fork(after_in_child=threads._forget)
