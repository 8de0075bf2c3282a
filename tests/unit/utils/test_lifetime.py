"""Threads are stopped at places where they do no harm, and objects know their process."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from graphlearn_dist.errors import ForkedProcessError, NotInitializedError, NotPicklableError
from graphlearn_dist.utils.system import lifetime
from graphlearn_dist.utils.system.lifetime import Home, Threads

DEADLINE_S = 60.0  # only ever reached by a hang


def begin(target: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)  # one that is stopped stays so until the process ends
    thread.start()
    return thread


@pytest.mark.parametrize("name", ["calls", "work"])
def test_a_thread_is_stopped_where_it_leaves_a_section(name: str) -> None:
    threads = Threads()
    section = getattr(threads, name)
    inside, leave = threading.Event(), threading.Event()
    seen: list[str] = []

    def work() -> None:
        with section:
            with section:
                inside.set()
                assert leave.wait(DEADLINE_S)
            seen.append("still inside")
        seen.append("outside")

    begin(work)
    assert inside.wait(DEADLINE_S)
    stopping = begin(threads.stop)
    leave.set()
    stopping.join(DEADLINE_S)
    assert threads.are_stopped
    assert seen == ["still inside"]


def test_a_thread_is_stopped_where_it_would_enter_one() -> None:
    threads = Threads()
    threads.stop()
    with threads.calls:  # who has stopped the others goes on
        pass
    seen: list[str] = []

    def work() -> None:
        seen.append("before")
        with threads.calls:
            seen.append("inside")

    thread = begin(work)
    thread.join(0.2)
    assert thread.is_alive()
    assert seen == ["before"]


def test_callers_leave_before_the_threads_that_they_wait_for() -> None:
    threads = Threads()
    begun, wanted, done = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def work() -> None:
        with threads.work:
            begun.set()
            assert wanted.wait(DEADLINE_S)
        order.append("worker goes on")  # the first time: a caller is still inside
        with threads.work:
            done.set()

    def call() -> None:
        with threads.calls:
            wanted.set()
            assert done.wait(DEADLINE_S)
            order.append("caller has its answer")

    begin(work)
    assert begun.wait(DEADLINE_S)
    begin(call)
    assert wanted.wait(DEADLINE_S)
    threads.stop()
    assert order == ["worker goes on", "caller has its answer"]


def test_a_loop_is_asked_to_stop() -> None:
    threads = Threads()
    asked: list[Callable[[], None]] = []
    inside, has_asked = threading.Event(), threading.Event()

    def ask(stop: Callable[[], None]) -> None:
        asked.append(stop)
        has_asked.set()

    def run() -> None:
        with threads.work_of_loop(ask):
            inside.set()
            assert has_asked.wait(DEADLINE_S)
            asked[0]()
            raise AssertionError("it was stopped")

    loop = begin(run)
    assert inside.wait(DEADLINE_S)
    threads.stop()
    assert threads.are_stopped
    assert loop.is_alive()


def test_a_thread_that_never_leaves_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "_LEAVE_S", 0.01)
    threads = Threads()
    inside = threading.Event()

    def work() -> None:
        with threads.calls:
            inside.set()
            threading.Event().wait()

    begin(work)
    assert inside.wait(DEADLINE_S)
    threads.stop()
    assert threads.are_stopped


def test_an_object_and_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home("the thing")
    home.check()
    assert home.is_own
    assert home.is_here
    with pytest.raises(NotPicklableError, match="the thing cannot be pickled or copied") as refused:
        home.refuse_pickling()
    assert str(copy.copy(refused.value)) == str(refused.value)  # it travels itself
    process = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: process + 1)
        assert not home.is_own
        assert not home.is_here
        for check in (home.check, home.check_own):
            with pytest.raises(ForkedProcessError, match=f"the thing belongs to process {process}, and process"):
                check()
    stopped = Threads()
    stopped.stop()
    monkeypatch.setattr(lifetime, "threads", stopped)
    assert home.is_own
    assert not home.is_here
    home.check_own()
    with pytest.raises(NotInitializedError, match="the thing cannot be used any more: this process is about to end"):
        home.check()


def test_a_thread_that_comes_too_late_is_stopped_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error would be printed by each daemon thread that the end of the process meets between two batches."""
    stopped = Threads()
    stopped.stop()
    monkeypatch.setattr(lifetime, "threads", stopped)
    came, seen = threading.Event(), []

    def work() -> None:
        came.set()
        try:
            Home("the thing").check()
        finally:
            seen.append("went on")

    thread = begin(work)
    assert came.wait(DEADLINE_S)
    thread.join(0.2)
    assert thread.is_alive()
    assert seen == []
