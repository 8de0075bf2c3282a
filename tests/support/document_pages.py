"""Pages whose files, commands and answers are blocks: written, run in order, and compared.

A block "```python train.py" is a file, "```hosts" the file of that name, "```sh" commands, and a "```text" block after
commands or a program has lines that it prints, in order: "…" stands for any text, and other lines may stand between.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.document_programs import ROOT, document
from tests.support.ssh_hosts import SshCluster

_BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
DEADLINE_S = 900.0  # only ever reached by a hang


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is (or nothing), and its text."""

    kind: str
    name: str
    text: str


def blocks(page: str) -> list[Block]:
    """The blocks of a page in ``docs``, in order."""
    return [
        Block(found["kind"], "hosts" if found["kind"] == "hosts" else found["name"] or "", found["text"])
        for found in _BLOCK.finditer(document(page))
    ]


def write_programs(directory: Path, programs: Mapping[str, str]) -> str:
    """Writes shell programs, ``python`` and ``graphlearn-dist`` too; returns a ``PATH`` that finds them first."""
    directory.mkdir()
    own = {"graphlearn-dist": f'exec {sys.executable} -m graphlearn_dist "$@"', "python": f'exec {sys.executable} "$@"'}
    for name, text in (own | dict(programs)).items():
        (directory / name).write_text(f"#!/bin/sh\n{text}\n")
        (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}"


def run_page(page: str, directory: Path, cluster: SshCluster | None = None) -> int:
    """Runs a page in an empty directory, and compares; returns how many answers it had.

    From the first command that logs in at hosts on it runs on the first host of the cluster; without one it ends there.
    """
    ssh = {} if cluster is None else {"ssh": f'exec {shutil.which("ssh")} -F {cluster.directory}/ssh_config "$@"'}
    path = write_programs(directory / "bin", ssh)
    environ = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    printed: str | None = None
    answers = 0
    for block in blocks(page):
        if block.name:
            (directory / block.name).write_text(block.text)
            printed = None
        elif block.kind == "text":
            assert printed is not None, f"{page}: an answer without a command"
            assert_printed(block.text, printed)
            answers += 1
        elif block.kind == "sh":
            command = ["bash", "-euc", block.text]
            if "--on ssh" in block.text:
                if cluster is None:
                    break
                variables = [f"{name}={environ[name]}" for name in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")]
                command = cluster.a.command("env", f"--chdir={directory}", *variables, *command)
            printed = _run(command, directory, environ)
        elif block.kind == "python":
            printed = _run([sys.executable, "-c", block.text], directory, environ)
            said = re.findall(r"^ *print\(.*\)  # (.*)$", block.text, re.MULTILINE)
            assert_printed("\n".join(said), printed)
            answers += len(said)
    return answers


def _run(command: list[str], directory: Path, environ: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def assert_printed(expected: str, printed: str) -> None:
    """Each expected line was printed, in this order."""
    lines = iter(printed.splitlines())
    for line in expected.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.split("…"))
        assert any(re.fullmatch(pattern, each) for each in lines), f"not printed: {line!r}, in\n{printed}"
