"""Small questions to other partitions that are asked at once travel together, whatever asks them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ...errors import DeadlineExceededError, PeerLostError
from ...sampler.batches_together import MOST_EDGES
from ...telemetry.trace import tracer

Question = TypeVar("Question")
Found = TypeVar("Found")


@dataclass
class _Joint(Generic[Question, Found]):
    """Questions that are asked together on a loop, the futures of their answers, and what asks them."""

    loop: asyncio.AbstractEventLoop
    questions: list[Question] = field(default_factory=list)
    answers: list[asyncio.Future[Found]] = field(default_factory=list)
    size: int = 0
    task: asyncio.Task[None] | None = None

    def call_off(self, _: asyncio.Future[Found]) -> None:
        """An answer is there, or nobody wants it any more."""
        if self.task is not None and all(answer.cancelled() for answer in self.answers):
            self.task.cancel()


class JointCalls(threading.local, Generic[Question, Found]):
    """Questions that come in the same turn of a loop are asked together, as far as they are small.

    Of large ones several are under way at once instead. Answers do not depend on it. Each thread's loop has its own.

    Args:
        ask: answers some questions, in their order. Where one of them may have failed the others it is called again for
            each alone, with False where a peer was lost: what had to be waited for was waited for.
        has_loop: whether it awaits on the running loop; else each question is asked by whoever awaits its answer.
    """

    def __init__(self, ask: Callable[[list[Question], bool], Awaitable[list[Found]]], *, has_loop: bool) -> None:
        self._ask = ask
        self._has_loop = has_loop
        self._open: _Joint[Question, Found] | None = None  # takes questions until the loop's next turn

    def begin(self, question: Question, size: int) -> Awaitable[Found]:
        """Begins to ask; the answer. ``size``: about how many edges or rows it is for, -1 if unknown."""
        if not self._has_loop:
            return self._alone(question)
        loop = asyncio.get_running_loop()
        joint = self._open
        # A trace follows each batch by itself.
        is_alone = size < 0 or 2 * size > MOST_EDGES or tracer() is not None
        if joint is None or joint.loop is not loop or is_alone or joint.size + size > MOST_EDGES:
            joint = _Joint(loop)  # a loop that was closed before its next turn leaves one behind
            loop.call_soon(self._begin, joint)
        if not is_alone:
            self._open = joint
        answer: asyncio.Future[Found] = loop.create_future()
        joint.questions.append(question)
        joint.answers.append(answer)
        joint.size += size
        answer.add_done_callback(joint.call_off)
        return answer

    async def _alone(self, question: Question) -> Found:
        (found,) = await self._ask([question], True)
        return found

    def _begin(self, joint: _Joint[Question, Found]) -> None:
        if self._open is joint:
            self._open = None
        if not all(answer.cancelled() for answer in joint.answers):
            joint.task = asyncio.get_running_loop().create_task(self._tell(joint.questions, joint.answers))

    async def _tell(
        self, questions: list[Question], answers: list[asyncio.Future[Found]], *, is_patient: bool = True
    ) -> None:
        try:
            found = await self._ask(questions, is_patient)
        except Exception as error:
            if len(questions) == 1 or isinstance(error, DeadlineExceededError):  # it was the deadline of each of them
                _fail(answers, error)
                return
            is_patient = not isinstance(error, PeerLostError)
            for at, question in enumerate(questions):
                if not answers[at].done():
                    await self._tell([question], answers[at : at + 1], is_patient=is_patient)
        except asyncio.CancelledError:
            _call_off(answers)
            raise
        else:
            for answer, one in zip(answers, found, strict=True):
                if not answer.done():
                    answer.set_result(one)
        finally:
            del answers  # they keep errors, whose tracebacks lead here: a data set must not wait for a collection


def _fail(answers: list[asyncio.Future[Found]], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
            answer.exception()  # seen: who asked may be gone


def _call_off(answers: list[asyncio.Future[Found]]) -> None:
    for answer in answers:
        answer.cancel()
