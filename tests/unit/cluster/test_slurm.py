"""Hosts of a Slurm allocation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphlearn_dist import cli
from graphlearn_dist.cluster import Host, LaunchPlan
from graphlearn_dist.cluster.jobs.slurm import expand_nodelist, slurm_hosts
from graphlearn_dist.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("alpha", ["alpha"]),
        ("alpha,beta-1.cluster", ["alpha", "beta-1.cluster"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[008-011,7],login1", ["n008", "n009", "n010", "n011", "n7", "login1"]),
        ("n[9-10]", ["n9", "n10"]),
        ("rack[1-2]n[01-02]-ib", ["rack1n01-ib", "rack1n02-ib", "rack2n01-ib", "rack2n02-ib"]),
        (" n[3] \n", ["n3"]),
        (" n1 , n2\tn[3-4] n5,,n6,", ["n1", "n2", "n3", "n4", "n5", "n6"]),
        ("n[8-011]", ["n8", "n9", "n10", "n11"]),
        ("n[01,1]", ["n01", "n1"]),
        ("n2,n[1-3],n2", ["n2", "n1", "n2", "n3", "n2"]),
        ("10.0.0.[1-2],[3-4]", ["10.0.0.1", "10.0.0.2", "3", "4"]),
    ],
)
def test_expanded_as_scontrol_does(nodelist: str, names: list[str]) -> None:
    assert expand_nodelist(nodelist) == names


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=20), st.integers(1, 5))
def test_any_numbers_come_back(numbers: list[int], width: int) -> None:
    texts = [str(number).zfill(width) for number in numbers]
    assert expand_nodelist(f"n[{','.join(texts)}]x") == [f"n{text}x" for text in texts]


@pytest.mark.parametrize(
    ("nodelist", "why"),
    [
        ("n[1-3", r"unexpected '\[' at character 2"),
        ("n1-3]", r"unexpected '\]' at character 5"),
        ("n[3-1]", "'3-1' is no range"),
        ("n[a-c]", "'a-c' is no range"),
        ("n[]", "'' is no range"),
        ("n[[1-2]]", r"unexpected '\[' at character 2"),
        ("n[1-10:2]", "'1-10:2' is no range"),
        ("n[1- 2]", "'1- 2' is no range"),
        (" , ", "it has no name"),
        ("n[1-99999999999]", "'1-99999999999' is no range"),
        ("n[1-60000]m[1-60000]", "more than 65536 hosts"),
    ],
)
def test_what_is_no_nodelist_is_refused(nodelist: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"SLURM_JOB_NODELIST: expected .*: {why}"):
        expand_nodelist(nodelist)


def _launched(monkeypatch: pytest.MonkeyPatch, *options: str) -> LaunchPlan:
    plans: list[LaunchPlan] = []
    monkeypatch.setattr("graphlearn_dist.cluster.launch", lambda plan: plans.append(plan) or 0)
    assert cli.main(["launch", *options, "--data", "partitions", "train.py"]) == 0
    return plans[0]


def test_launch_over_ssh_takes_the_hosts_of_the_allocation(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    assert slurm_hosts() == [Host("n1"), Host("n2")]
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1,n[1-2], n2")
    assert slurm_hosts() == [Host("n1"), Host("n2")]  # each once
    plan = _launched(monkeypatch, "--on", "ssh", "--servers", "2", "--trainers", "3")
    assert list(plan.hosts) == [Host("n1"), Host("n2")]
    assert plan.placement().server_hosts == ["n1", "n2"]
    assert plan.placement().trainer_hosts == ["n1", "n2", "n1"]
    named = tmp_path_factory.mktemp("hosts") / "hosts"
    named.write_text("other slots=2\n")
    assert list(_launched(monkeypatch, "--on", "ssh", "--hosts", str(named)).hosts) == [Host("other", 2)]
    assert list(_launched(monkeypatch).hosts) == []  # a job on one machine stays there


def test_a_launcher_that_srun_starts_several_times_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    assert cli.main(["launch", "--on", "ssh", "--data", "partitions", "train.py"]) == 1
    assert "launch: expected to be started once, srun starts it 2 times" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert _launched(monkeypatch, "--on", "ssh").hosts == [Host("n1"), Host("n2")]


def test_outside_of_an_allocation_hosts_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    assert slurm_hosts() == []
    assert cli.main(["launch", "--on", "ssh", "--data", "partitions", "train.py"]) == 1
    assert "hosts: expected at least one host for ssh (a file, or a Slurm allocation)" in capsys.readouterr().err
