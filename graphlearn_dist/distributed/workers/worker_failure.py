"""What a failure in a sampling worker looks like, on its way and where somebody waits."""

from __future__ import annotations

import os
import socket
import traceback

from ...errors import SamplingWorkerError
from ...messages import WorkerFailure


def describe_failure(
    worker: str, stage: str, error: BaseException, run: int = 0, epoch: int = 0, index: int = 0
) -> WorkerFailure:
    """An exception in this process as a message; ``worker`` is what the process is."""
    text = "".join(traceback.format_exception(error))
    who = f"{worker} (pid {os.getpid()} on {socket.gethostname()})"
    return WorkerFailure(run, epoch, index, who, stage, type(error).__name__, str(error), text)


def failure_error(failure: WorkerFailure) -> SamplingWorkerError:
    """The exception that a worker's failure becomes where somebody waits."""
    where = f"batch {failure.index} of epoch {failure.epoch}, " if failure.stage == "sample" else ""
    return SamplingWorkerError(
        f"{failure.worker}: {where}stage {failure.stage}: {failure.type_name}: {failure.message}\n"
        f"--- worker traceback ---\n{failure.traceback}"
    )
