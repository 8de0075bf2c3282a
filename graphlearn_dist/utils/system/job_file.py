"""A file that leads to a running job: where its registry is, and the secret, for its owner alone."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import InvalidArgumentError


@dataclass(frozen=True)
class JobAddress:
    """How a job is reached.

    Attributes:
        master_addr: host of the registry.
        master_port: its port.
        token: the job's secret; None where it has none.
    """

    master_addr: str
    master_port: int
    token: bytes | None


@contextlib.contextmanager
def job_file(path: str | Path, job: JobAddress) -> Iterator[None]:
    """Such a file for the time of a ``with`` block; it is there whole or not at all, and nobody else can read it.

    Raises:
        InvalidArgumentError: it cannot be written.
    """
    place = Path(path)
    token = None if job.token is None else job.token.decode()
    text = json.dumps({"master_addr": job.master_addr, "master_port": job.master_port, "token": token})
    try:
        descriptor, made = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)  # for its owner alone
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(made, place)
    except OSError as error:
        raise InvalidArgumentError(f"job file: cannot write {place}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # another job may have put its own there, which goes with it
            if place.read_text(encoding="utf-8") == text + "\n":
                place.unlink()


def read_job_file(path: str | Path) -> JobAddress:
    """What ``job_file`` wrote.

    Raises:
        InvalidArgumentError: there is no such file, perhaps as the job has ended, or it is another one.
    """
    try:
        read = json.loads(Path(path).read_text(encoding="utf-8"))
        token = read["token"]
        return JobAddress(str(read["master_addr"]), int(read["master_port"]), None if token is None else token.encode())
    except FileNotFoundError as error:
        raise InvalidArgumentError(
            "job file: expected the file of a running job (launch --job-file), or [HOST:]PORT, got "
            f"{path}, which is not there; it goes when its job ends"
        ) from error
    except OSError as error:
        raise InvalidArgumentError(f"job file: cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"job file: {path} is none: {type(error).__name__}: {error}") from error
