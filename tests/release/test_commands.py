"""Every command of the documents is run by a test as it is printed, or is listed here with the reason."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graphlearn_dist.cli import _parser
from graphlearn_dist.telemetry.timeline import FETCH, MAKE, WAIT, read_trace
from tests.support.document_pages import DEADLINE_S, blocks, write_programs
from tests.support.document_programs import ROOT

DOCS = ROOT / "docs"
PAGES = {"README.md": ROOT / "README.md", "CONTRIBUTING.md": ROOT / "CONTRIBUTING.md"} | {
    str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))
}
_FENCE = re.compile(r"^```(?P<kind>\w*)(?: \S+)?\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(
    r"(?:\w+\$ |\$ )?(?:graphlearn-dist|make|python3?|pip|docker|kubectl|ray|openssl|ssh|sbatch|srun) \S"
)

# Pages whose commands another test runs, and which.
RUN_BY = {
    "README.md": "release/test_readme.py",
    "cluster.md": "cluster/test_cluster_doc.py",
    **{page: "release/test_tutorials.py" for page in PAGES if page.startswith("tutorials/")},
    "index.md": "release/test_wheels.py",  # installs a wheel and runs a job in an environment without a compiler
}
# Pages whose commands nobody runs as they are printed, and why.
NOT_RUN = {
    "CONTRIBUTING.md": "CI is made of these commands; that there are such is seen by test_readme.py",
    "release.md": "CI is made of these commands",
}
# Blocks of a page that is run, but for them, and why.
BLOCKS_NOT_RUN = {
    ("ray.md", "node0$ ray start"): "four machines; tests/cluster/groups/test_ray_job.py has some made of processes",
    ("ray.md", "#!/bin/bash"): "a script for Slurm and Ray",
    ("ray.md", "$ ray list actors"): "what Ray's own tools print",
}

TRAIN_UNTIL_STOPPED = """
import os, time
import graphlearn_dist as glt
from graphlearn_dist.config import LaunchContext

ctx = LaunchContext.from_environ()
glt.distributed.init_client(
    num_servers=ctx.num_servers, num_clients=ctx.num_clients, client_rank=ctx.rank,
    master_addr=ctx.master_addr, master_port=ctx.master_port,
)
loader = glt.distributed.DistNeighborLoader(
    None, [3, 2], input_nodes=glt.typing.Split.train, batch_size=16, edge_dir="in", collect_features=True,
    worker_options=glt.distributed.RemoteDistSamplingWorkerOptions(num_workers=1), shard=(ctx.rank, ctx.num_clients),
)
list(loader)
print("an epoch is over", flush=True)
while os.path.exists("go on"):
    list(loader)
loader.shutdown()
glt.distributed.shutdown_client()
"""
MODEL = "from torch_geometric.nn import GraphSAGE\n\ndef make_model():\n    return GraphSAGE(4, 8, 2, out_channels=3)\n"
STAND_INS = {
    "pip": 'case "$1 $2" in "install graphlearn_dist["*"]") ;; *) exit 1;; esac',
    "docker": 'test "$1 $2" = "build -f" && test -e "$3"',
    "kubectl": """for word in "$@"; do case "$before $word" in
      "-f "*) test -e "$word" || exit 1;; *--from-file=*) test -e "${word#*=}" || exit 1;;
      *token=*) test ${#word} -gt 64 || exit 1;; esac; before=$word; done""",
}


def command_blocks(page: str) -> list[str]:
    """The blocks of commands of a page: those marked as such, and those that look like it."""
    found = []
    for fence in _FENCE.finditer(PAGES[page].read_text()):
        if fence["kind"] in ("sh", "bash") or (not fence["kind"] and _PROGRAM.match(fence["text"])):
            found.append(fence["text"])
    return found


def _lines_of(text: str) -> list[str]:
    return text.replace("\\\n", " ").splitlines()


@pytest.mark.parametrize("page", PAGES)
def test_commands_of_this_package_are_accepted(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in command_blocks(page):
        for line in _lines_of(text):
            if command := re.search(r"(?:^|[$&] |exec )graphlearn-dist (.*)", line):
                _parser().parse_args(shlex.split(re.sub(r"\$\{?[A-Z_]+\}?", "2", command[1]), comments=True))
    for name, rest in re.findall(r"`graphlearn-dist (\w+)([^`]*)`", PAGES[page].read_text()):
        with pytest.raises(SystemExit, match="0"):
            _parser().parse_args([name, "--help"])
        own = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        assert set(re.findall(r" (--[a-z][\w-]*)", rest)) <= own, f"{page}: graphlearn-dist {name}{rest}"


def test_each_page_with_commands_is_run() -> None:
    with_commands = {page for page in PAGES if command_blocks(page)}
    assert with_commands == {*SITUATIONS, *NOT_RUN, *(page for page in RUN_BY if page in with_commands)}
    for page, test in RUN_BY.items():
        assert (ROOT / "tests" / test).exists(), f"{page}: {test}"
    for page, beginning in BLOCKS_NOT_RUN:
        assert [text for text in command_blocks(page) if text.startswith(beginning)], f"{page}: {beginning}"


# --- what a page needs before its commands can be run --------------------------------------------------------------


def _small_graph(directory: Path) -> None:
    """Files of docs/cluster.md, a graph, and two partitions of it."""
    for block in blocks("cluster.md"):
        if block.name.endswith(".py"):
            (directory / block.name).write_text(block.text)
    _bash(directory, "python make_graph.py")
    _bash(directory, "graphlearn-dist partition --data graph.npz --out partitions --parts 2")


def _tables(directory: Path) -> None:
    """Those of the tutorial on tables, and its script."""
    for block in blocks("tutorials/own_tables.md"):
        if block.name:
            (directory / block.name).write_text(block.text)
    _bash(directory, "python make_tables.py")


def _model(directory: Path) -> None:
    _small_graph(directory)
    (directory / "model.py").write_text(MODEL)
    _bash(directory, "python -c 'import model, torch; torch.save(model.make_model().state_dict(), \"model.pt\")'")


def _near_nodes(directory: Path) -> None:
    pytest.importorskip("kaminpar")
    _tables(directory)
    (directory / "shop.yaml").rename(directory / "graph.yaml")
    _small_graph(directory)
    (directory / "partitions").rename(directory / "random_parts")


def _ray(directory: Path) -> None:
    pytest.importorskip("ray")
    _small_graph(directory)


def _cluster(directory: Path) -> None:
    (directory / "deploy").symlink_to(ROOT / "deploy")
    (directory / "train.py").touch()


def _watched_job(directory: Path) -> None:
    pytest.importorskip("prometheus_client")
    _small_graph(directory)
    (directory / "train.py").write_text(TRAIN_UNTIL_STOPPED)


SITUATIONS: dict[str, Callable[[Path], None]] = {
    "inference.md": _model,
    "kubernetes.md": _cluster,
    "locality.md": _near_nodes,
    "ray.md": _ray,
    "security.md": lambda _: None,
    "tables.md": _tables,
    "telemetry.md": _watched_job,
}


def _environ(directory: Path) -> dict[str, str]:
    programs = directory / "bin"
    path = f"{programs}:{os.environ['PATH']}" if programs.exists() else write_programs(programs, STAND_INS)
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def _bash(directory: Path, commands: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=directory,
        env=_environ(directory),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("page", SITUATIONS)
def test_commands_of_a_page(page: str, tmp_path: Path) -> None:
    if page == "security.md" and shutil.which("openssl") is None:
        pytest.skip("openssl is not here")
    SITUATIONS[page](tmp_path)
    for text in command_blocks(page):
        if any(of == page and text.startswith(beginning) for of, beginning in BLOCKS_NOT_RUN):
            continue
        if page == "telemetry.md" and "--job-file" in text:
            _look_at_the_job(tmp_path, *_lines_of(text))
            continue
        if page == "locality.md":  # ways to one result, in place of each other
            text = re.sub(r"(--out parts)\b(?=.* (?:ldg|kaminpar) +#)", r"rm -rf parts; \1", text)
            for line in _lines_of(text):
                command = line.replace("rm -rf parts; ", "")
                _bash(tmp_path, f"rm -rf parts; {command}" if command != line else command)
            continue
        _bash(tmp_path, f"rm -rf rows\n{text}" if page == "inference.md" else text)  # two ways to one result
    if page == "telemetry.md":
        _check_trace(tmp_path / "trace.json")


def _look_at_the_job(directory: Path, launch: str, *looks: str) -> None:
    """A job, and what is asked of it while it runs."""
    (directory / "go on").touch()
    running = subprocess.Popen(
        ["bash", "-euc", launch], cwd=directory, env=_environ(directory), stdout=subprocess.PIPE, text=True
    )
    try:
        assert running.stdout is not None
        over = 0
        while over < 2:
            line = running.stdout.readline()
            assert line, "the job has ended"
            over += line.endswith("an epoch is over\n")
        for look in looks:
            printed = _bash(directory, f"{look} --count 1" if " top " in look else look)
            names = re.findall(r"^((?:server|client) \d) ", printed, re.MULTILINE)
            assert names == ["server 0", "server 1", "client 0", "client 1"]
            assert printed.count("    DistNeighborLoader 0: epoch") == printed.count("    for client") == 2
    finally:
        (directory / "go on").unlink()
        running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 0


def _check_trace(path: Path) -> None:
    """Each batch that a loop got can be followed: who made it, which server gave it away, and who waited for it."""
    seen = {
        name: [span.batch for process in read_trace(path) for span in process.spans if span.name == name]
        for name in (WAIT, MAKE, FETCH)
    }
    assert len(seen[WAIT]) == len(set(seen[WAIT])) > 0
    assert {*seen[WAIT]} <= {*seen[MAKE]}
    assert {*seen[WAIT]} <= {*seen[FETCH]}


if __name__ == "__main__":
    for each in PAGES:
        for text in command_blocks(each):
            who = RUN_BY.get(each) or NOT_RUN.get(each) or f"{Path(sys.argv[0]).name}"
            print(f"{each}: {text.splitlines()[0]}: {who}")
