"""A model from a file of the user's, with the parameters of a checkpoint."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidArgumentError, StorageError
from .layers import modules_of

_NESTED = ("state_dict", "model_state_dict", "model")


def load_model(spec: str, checkpoint: str | Path | None = None) -> Any:
    """What ``FUNCTION()`` of ``FILE:FUNCTION`` returns, with a checkpoint's parameters.

    Args:
        spec: a Python file, which is run, and a function in it without arguments, which makes what ``infer`` takes.
        checkpoint: a file of ``torch.save``: the ``state_dict`` of the model, or of an ``nn.ModuleList`` of its layers,
            or a dict that has it as ``state_dict``, ``model_state_dict`` or ``model``. Only tensors are read.

    Raises:
        InvalidArgumentError: there is no such function; or the parameters do not fit.
        StorageError: the checkpoint cannot be read.
    """
    file, _, name = spec.rpartition(":")
    if not file or not Path(file).is_file():
        raise InvalidArgumentError(f"model: expected FILE:FUNCTION of a Python file, got {spec!r}")
    sys.path.insert(0, str(Path(file).resolve().parent))  # as of a script
    try:
        function = runpy.run_path(file).get(name)
    finally:
        sys.path.pop(0)
    if not callable(function):
        raise InvalidArgumentError(f"model: expected a function {name!r} in {file}, found none")
    model = function()
    if checkpoint is not None:
        _load_parameters(model, Path(checkpoint))
    return model


def _load_parameters(model: Any, path: Path) -> None:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises errors of many classes for a file that it cannot read
        raise StorageError(f"{path}: cannot be read as a checkpoint ({error})") from error
    for name in _NESTED:
        if isinstance(state, dict) and isinstance(state.get(name), dict):
            state = state[name]
            break
    module = model if isinstance(model, torch.nn.Module) else torch.nn.ModuleList(modules_of(model))
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"checkpoint: {path} does not fit the model: {error}") from error
