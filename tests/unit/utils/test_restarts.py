"""How often something that dies is started again."""

from __future__ import annotations

from graphlearn_dist.utils.system.restarts import RestartBudget


def test_no_more_than_the_limit_within_the_window() -> None:
    now = 0.0
    budget = RestartBudget(2, 10.0, clock=lambda: now)
    taken = []
    for now in (0.0, 6.0, 7.0, 9.9, 10.0, 11.0, 16.0, 17.0):  # noqa: B007  the clock reads it
        taken.append(budget.take())
    assert taken == [True, True, False, False, True, False, True, False]
    assert budget.used == 2
    assert not RestartBudget(0).take()
