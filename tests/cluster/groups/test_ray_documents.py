"""Every program of docs/ray.md and docs/ray_programs.md runs as it is printed there, and prints what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import document_programs
from tests.support.document_programs import Program, document, programs
from tests.support.oracle import graph_of, write_partitions
from tests.support.processes import start
from tests.support.ray_nodes import RayNodes

PROGRAMS = [*programs("ray.md"), *programs("ray_programs.md")]
SERVE = f"{document_programs.__name__}.{document_programs.serve.__name__}"

DEADLINE_S = 300.0  # only ever reached by a hang

Run = Callable[[Path], dict[str, Any]]


@pytest.fixture(scope="module", params=["local", "ray"])
def run(request: pytest.FixtureRequest) -> Iterator[tuple[str, Run]]:
    """One driver for the programs of each engine: connecting to Ray takes longer than most of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        if request.param == "ray":
            nodes: RayNodes = request.getfixturevalue("ray_nodes")
            patch.setenv("RAY_ADDRESS", nodes.address)
        with start(SERVE) as driver:

            def run_one(path: Path) -> dict[str, Any]:
                driver.tell(json.dumps(str(path)))
                answer: dict[str, Any] = json.loads(driver.readline())
                return answer

            yield request.param, run_one


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: f"{program.document}:{program.line}")
def test_programs_print_what_they_say(run: tuple[str, Run], program: Program, tmp_path: Path) -> None:
    engine, run_one = run
    if program.needs_ray and engine != "ray":
        pytest.skip("it says that it is for Ray")
    assert program.printed, "a program that shows nothing proves nothing"
    path = tmp_path / "program.py"
    path.write_text(program.text, encoding="utf-8")
    answer = run_one(path)
    assert answer == {"printed": program.printed, "error": ""}


TRAIN = """
import torch
import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext

ctx = LaunchContext.from_environ()
glt.distributed.init_client(ctx.num_servers, ctx.num_clients, ctx.rank, ctx.master_addr, ctx.master_port)
loader = glt.distributed.DistNeighborLoader(
    None, [2], input_nodes=torch.arange(8), batch_size=2, edge_dir="in", shard=(ctx.rank, ctx.num_clients),
    temporal_strategy=None,
    worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(num_workers=1),
)
print("batches", len([batch for batch in loader]), flush=True)
loader.shutdown()
glt.distributed.shutdown_client()
"""


@pytest.mark.thorough
def test_the_command_for_a_job(ray_nodes: RayNodes, tmp_path: Path) -> None:
    """As it is printed, in a directory that has the partitions and the script."""
    [command] = re.findall(r"^## A whole job\n+```\n(.*?)\n```$", document("ray.md"), re.MULTILINE | re.DOTALL)
    write_partitions(graph_of("homogeneous"), tmp_path, "random", 2, "in")
    (tmp_path / "train.py").write_text(TRAIN)
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={
            **os.environ,
            "RAY_ADDRESS": ray_nodes.address,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for rank in range(2):
        assert f"[trainer {rank}] batches 2" in ran.stdout
