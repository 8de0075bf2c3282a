"""Stages of a build: what is finished is written down, so that a build that was killed goes on from there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import _C
from ..errors import InvalidArgumentError, StorageError
from ..utils.progress import Progress, Report, told
from ..utils.system.disk import disk_errors

_STATE_FILE = "STATE.json"
RESUME = "; --resume goes on when it can"


class Stages:
    """Runs stages that were not finished yet, and keeps their results (in JSON's types) in a folder.

    Args:
        folder: of the build; there is a lock on it while this is used.
        fingerprint: of what is built: results of another are of no use.
        resume: whether to go on with what is there.
        progress: told how far a stage is.
    """

    def __init__(self, folder: Path, fingerprint: dict[str, Any], *, resume: bool, progress: Progress | None) -> None:
        self._folder, self._progress = folder, progress
        self._done: dict[str, Any] = {}
        given = json.loads(json.dumps(fingerprint))
        if resume and (folder / _STATE_FILE).exists():
            state = self._read()
            for name, value in given.items():
                if state["fingerprint"].get(name) != value:
                    raise InvalidArgumentError(
                        f"resume: expected what {folder} was begun with, but {name} differs (a config, an option or a "
                        "file changed); build without --resume to begin anew"
                    )
            self._done = state["done"]
        else:
            for entry in list(folder.iterdir()):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        self._fingerprint = given

    def _read(self) -> dict[str, Any]:
        path = self._folder / _STATE_FILE
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(state["fingerprint"], dict) and isinstance(state["done"], dict):
                return dict(state)
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise StorageError(f"{path}: cannot be read ({error}); build without --resume to begin anew") from error
        raise StorageError(f"{path}: damaged; build without --resume to begin anew")

    def run(self, name: str, total: int | None, work: Callable[[Report], Any]) -> Any:
        """The result of a stage: that of an earlier run, or of ``work``, which tells how many rows it has done."""
        if name in self._done:
            return self._done[name]
        with told(self._progress, name, total) as report:
            with disk_errors(self._folder, RESUME):
                result = work(report)
                self._done[name] = json.loads(json.dumps(result))
                self._write()
            _C.trim_pool()
        return self._done[name]

    def _write(self) -> None:
        path = self._folder / _STATE_FILE
        temporary = path.with_suffix(".new")
        state = {"fingerprint": self._fingerprint, "done": self._done}
        temporary.write_text(json.dumps(state), encoding="utf-8")
        os.replace(temporary, path)
