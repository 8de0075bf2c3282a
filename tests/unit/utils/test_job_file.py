"""Files that lead to a running job."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from graphlearn_dist.cli import main
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.utils.system.job_file import JobAddress, job_file, read_job_file


@pytest.mark.parametrize("token", [None, b"secret"])
def test_it_is_there_for_its_owner_while_the_job_runs(token: bytes | None, tmp_path: Path) -> None:
    place, job = tmp_path / "job.json", JobAddress("node-a", 29400, token)
    place.write_text("of an earlier job")
    with job_file(place, job):
        assert read_job_file(place) == job
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
        assert list(tmp_path.iterdir()) == [place]
    assert not place.exists()


def test_another_jobs_file_stays(tmp_path: Path) -> None:
    place = tmp_path / "job.json"
    with job_file(place, JobAddress("node-a", 1, None)):
        place.write_text("another job's")
    assert place.read_text() == "another job's"


def test_files_that_are_none(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="cannot write"),
        job_file(tmp_path / "no" / "f", JobAddress("", 1, b"")),
    ):
        pass
    with pytest.raises(InvalidArgumentError, match="cannot read"):
        read_job_file(tmp_path)
    for text in ("", "{}", "[]", '{"master_addr": "a", "master_port": "x", "token": null}', '{"token": 7}'):
        (tmp_path / "f").write_text(text)
        with pytest.raises(InvalidArgumentError, match="is none"):
            read_job_file(tmp_path / "f")


def test_a_job_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file is gone: a name of a file is not taken for an address."""
    monkeypatch.chdir(tmp_path)
    for command in ("status", "top"):
        assert main([command, "job.json"]) == 1
        assert "got job.json, which is not there; it goes when its job ends" in capsys.readouterr().err
