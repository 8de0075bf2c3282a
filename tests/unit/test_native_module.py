"""What the native module links, and what the package promises about its installation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import graphlearn_dist as glt
from graphlearn_dist import _C

ROOT = Path(__file__).resolve().parents[2]


def output_of(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_links_neither_torch_nor_python() -> None:
    libraries = re.sub(r"0x[0-9a-f]+", "", output_of("ldd", _C.__file__))  # an address may well spell c10
    assert not re.search(r"torch|c10|libpython|libcuda\b", libraries), libraries


def test_needs_no_torch_symbol() -> None:
    symbols = output_of("nm", "-D", "--undefined-only", _C.__file__)
    assert not re.search(r"torch|c10|caffe2|at::", symbols), symbols
    assert "PyObject" in symbols  # nm did print this module's symbols


def test_imports_without_torch() -> None:
    """The core alone works where torch is not installed, and the package does not import it before it is needed."""
    script = (
        "import sys; sys.modules['torch'] = None; import graphlearn_dist; from graphlearn_dist import _C; "
        "print(_C.draw_key(0, 0, 0, 0, 0))"
    )
    assert int(output_of(sys.executable, "-c", script)) == _C.draw_key(0, 0, 0, 0, 0)


def test_sampling_workers_do_not_import_pyg() -> None:
    script = "import sys, graphlearn_dist.distributed.workers.sampling_worker; print('torch_geometric' in sys.modules)"
    assert output_of(sys.executable, "-c", script).strip() == "False"


def test_versions_agree() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{glt.__version__}"' in text


def test_show_config_says_whether_cuda_was_built() -> None:
    config = glt.show_config()
    expected = "built with" if _C.cuda_is_built() else "not built"
    assert f"cuda: {expected}" in config
