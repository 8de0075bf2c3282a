"""Small questions that are asked at once travel together; who asks does not notice."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from graphlearn_dist.distributed.sampling.joint_calls import JointCalls
from graphlearn_dist.errors import DeadlineExceededError, InvalidArgumentError, PeerLostError
from graphlearn_dist.sampler.batches_together import MOST_EDGES


class Asked:
    """Answers a number by its square; an ``Exception`` by raising it.

    Attributes:
        calls: the questions of each call.
        may_answer: answers wait for it.
        num_cancelled: calls that were cancelled.
    """

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.was_patient: list[bool] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.num_cancelled = 0

    async def __call__(self, questions: list[Any], is_patient: bool) -> list[Any]:
        self.calls.append(list(questions))
        self.was_patient.append(is_patient)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        for question in questions:
            if isinstance(question, Exception):
                raise question
        return [question**2 for question in questions]


def test_those_of_one_turn_travel_together() -> None:
    async def main() -> list[list[Any]]:
        asked = Asked()
        joint: JointCalls[Any, Any] = JointCalls(asked, has_loop=True)
        small = [joint.begin(number, 1) for number in range(3)]
        others = [joint.begin(7, -1), joint.begin(8, MOST_EDGES), joint.begin(3, 1)]  # unknown and large ones go alone
        assert [await answer for answer in [*small, *others]] == [0, 1, 4, 49, 64, 9]
        assert await joint.begin(5, 1) == 25
        half = MOST_EDGES // 2
        assert await asyncio.gather(*(joint.begin(number, half) for number in (1, 2, 3))) == [1, 4, 9]
        return asked.calls

    assert asyncio.run(main()) == [[0, 1, 2, 3], [7], [8], [5], [1, 2], [3]]


def test_one_that_fails() -> None:
    """The others are asked again, each alone; who waited for a peer in vain does not wait again. A deadline is over."""

    async def main(error: Exception) -> tuple[list[Any], list[list[Any]], list[bool]]:
        asked = Asked()
        joint: JointCalls[Any, Any] = JointCalls(asked, has_loop=True)
        answers = [joint.begin(question, 1) for question in (2, error, 3)]
        return await asyncio.gather(*answers, return_exceptions=True), asked.calls, asked.was_patient

    wrong = InvalidArgumentError("no")
    assert asyncio.run(main(wrong)) == ([4, wrong, 9], [[2, wrong, 3], [2], [wrong], [3]], [True] * 4)
    lost = PeerLostError("server-0", "gone")
    assert asyncio.run(main(lost)) == ([4, lost, 9], [[2, lost, 3], [2], [lost], [3]], [True] + [False] * 3)
    late = DeadlineExceededError("no answer")
    assert asyncio.run(main(late)) == ([late] * 3, [[2, late, 3]], [True])


@pytest.mark.parametrize("begun", [False, True])
def test_nobody_wants_it(begun: bool) -> None:
    """A question is called off when the last of those is that it travels with; others keep their answers."""

    async def main() -> None:
        asked = Asked()
        asked.may_answer.clear()
        joint: JointCalls[Any, Any] = JointCalls(asked, has_loop=True)
        answers = [asyncio.ensure_future(joint.begin(number, 1)) for number in (2, 3)]
        if begun:
            while not asked.calls:
                await asyncio.sleep(0)
        answers[0].cancel()
        await asyncio.sleep(0)
        asked.may_answer.set()
        assert await answers[1] == 9
        assert asked.num_cancelled == 0
        asked.may_answer.clear()
        answers = [asyncio.ensure_future(joint.begin(number, 1)) for number in (2, 3)]
        num_calls = len(asked.calls)
        if begun:
            while len(asked.calls) == num_calls:
                await asyncio.sleep(0)
        for answer in answers:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)
        assert (len(asked.calls) - num_calls, asked.num_cancelled) == (int(begun), int(begun))

    asyncio.run(main())


def test_a_loop_that_ended_before_its_next_turn() -> None:
    """What was asked there is not waited for by those who ask on the thread's next loop."""
    asked = Asked()
    joint: JointCalls[Any, Any] = JointCalls(asked, has_loop=True)

    async def leave() -> None:
        joint.begin(4, 1)
        asyncio.get_running_loop().stop()  # it ends with this turn

    ended = asyncio.new_event_loop()
    left = ended.create_task(leave())
    ended.run_forever()
    ended.close()
    assert left.done()

    async def main() -> Any:
        return await asyncio.wait_for(asyncio.ensure_future(joint.begin(5, 1)), 60)

    assert asyncio.run(main()) == 25
    assert asked.calls == [[5]]


class Failing:
    """Fails at whatever is asked."""

    def __init__(self, kind: type[Exception], *args: str) -> None:
        self.kind, self.args = kind, args

    async def __call__(self, questions: list[Any], is_patient: bool) -> list[Any]:
        raise self.kind(*self.args)


@pytest.mark.parametrize("error", [(InvalidArgumentError, "no"), (PeerLostError, "server-0", "gone")])
def test_an_error_keeps_nothing_alive(error: tuple[Any, ...]) -> None:
    """What asks goes with the last reference to it, and to the errors that it told."""

    async def main(joint: JointCalls[Any, Any]) -> set[type]:
        found = await asyncio.gather(*(joint.begin(number, 1) for number in range(3)), return_exceptions=True)
        return {*map(type, found)}

    asked = Failing(*error)
    kept = weakref.ref(asked)
    gc.disable()
    try:
        assert asyncio.run(main(JointCalls(asked, has_loop=True))) == {error[0]}
        del asked
        assert kept() is None
    finally:
        gc.enable()


def test_without_a_loop() -> None:
    """Whoever awaits the answer asks."""
    asked = Asked()
    joint: JointCalls[Any, Any] = JointCalls(asked, has_loop=False)
    answer = joint.begin(4, 1)
    assert asked.calls == []
    with pytest.raises(StopIteration) as end:
        answer.__await__().send(None)  # type: ignore[union-attr]
    assert end.value.value == 16
