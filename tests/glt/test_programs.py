"""Programs as users of GraphLearn-for-PyTorch have them, from shells: they differ by the import line and the device.

Each learns what the core's own loaders learn on the same data, over three seeds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from graphlearn_dist.utils.system.ports import reserved_port
from tests.glt import planted
from tests.support.processes import ROOT, warm_interpreter
from tests.support.warm import ForkedProcess

PROGRAMS = Path(__file__).with_name("programs")
DEADLINE_S = 400.0  # only ever reached by a hang
SEEDS = (0, 1, 2)
# Of the difference between means over three seeds; single accuracies differ by 0.02 between seeds.
NOISE = 0.05


@contextlib.contextmanager
def shell(program: str, log: Path, **arguments: Any) -> Iterator[ForkedProcess]:
    """A program in a shell of its own; killed with what it started where the block ends before it."""
    words = [word for name, value in arguments.items() for word in (f"--{name}", *map(str, listed(value)))]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = warm_interpreter().popen(
            [str(PROGRAMS / program), *words], env=environ, directory=ROOT, stdout=out.fileno(), stderr=out.fileno()
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(DEADLINE_S)


def listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def run_together(programs: list[tuple[str, dict[str, Any]]], logs: Path) -> None:
    """Starts all of them at once, and waits until they have ended well."""
    with contextlib.ExitStack() as stack:
        files = [logs / f"{number}-{program}.log" for number, (program, _) in enumerate(programs)]
        started = [
            stack.enter_context(shell(program, log, **arguments))
            for (program, arguments), log in zip(programs, files, strict=True)
        ]
        try:
            codes = [process.wait(DEADLINE_S) for process in started]
        except subprocess.TimeoutExpired:
            codes = [process.poll() for process in started]
        said = "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in files)
        assert codes == [0] * len(codes), said


@contextlib.contextmanager
def ports(*names: str) -> Iterator[dict[str, int]]:
    with contextlib.ExitStack() as stack:
        yield {f"{name}_master_port": stack.enter_context(reserved_port()) for name in names}


def results_of(out: Path, count: int = 2) -> list[Any]:
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(count)]


def assert_learnt_alike(results: list[list[dict[str, Any]]], core: list[float], guessing: float) -> None:
    """Scores of the trainers of a job beside those of the core's loaders; losses of the trainers differ."""
    scores = [mean(result["score"] for result in of_seed) for of_seed in zip(*results, strict=True)]
    print("scores", scores, "core", core)
    assert abs(mean(scores) - mean(core)) < NOISE
    assert mean(core) > guessing + 4 * NOISE
    for of_seed in zip(*results, strict=True):
        first, second = (result["losses"] for result in of_seed)
        assert len(first) > 10
        assert all(one != other for one, other in zip(first, second, strict=True))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models are small: threads that wait for each other would take longer."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def supervised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A directory as the partitioning program leaves it, and the graph."""
    root, graph = tmp_path_factory.mktemp("supervised"), planted.supervised()
    planted.save(graph, root)
    run_together([("partition_graph.py", {"root_dir": root})], root)
    return root, graph


SUPERVISED: dict[str, Any] = {
    "in_channels": planted.NUM_FEATURES, "num_classes": planted.NUM_CLASSES, "seeds": SEEDS, "epochs": 4
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["mp", "collocated"])
def test_supervised_workers(supervised: tuple[Path, dict[str, Any]], tmp_path: Path, mode: str) -> None:
    root, graph = supervised
    with ports("training_pg", "train_loader", "test_loader") as where:
        arguments = {"root_dir": root, "out": tmp_path / "out", "mode": mode, **SUPERVISED, **where}
        run_together([("sage_supervised.py", {**arguments, "node_rank": rank}) for rank in range(2)], tmp_path)
    core = [planted.train_supervised(graph, seed, 64, 4) for seed in SEEDS]
    assert_learnt_alike(results_of(tmp_path / "out"), core, 0.25)


def test_servers_and_clients(supervised: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Two of each, from four shells; both clients name the same seeds on the servers."""
    root, graph = supervised
    with ports("server_client", "training_pg", "train_loader", "test_loader") as where:
        server = {"root_dir": root, "server_client_master_port": where["server_client_master_port"]}
        client = {"root_dir": root, "out": tmp_path / "out", **SUPERVISED, "epochs": 2, **where}
        run_together(
            [
                *(("sage_server.py", {**server, "node_rank": rank}) for rank in range(2)),
                *(("sage_client.py", {**client, "client_rank": rank}) for rank in range(2)),
            ],
            tmp_path,
        )
    found = results_of(tmp_path / "out")
    core = [planted.train_supervised(graph, seed, 64, 4) for seed in SEEDS]
    assert_learnt_alike([one["results"] for one in found], core, 0.25)
    assert [one["device_count"] for one in found] == [torch.cuda.device_count()] * 2


def prepared(root: Path, graph: dict[str, Any], **arguments: Any) -> Path:
    """A directory of two partitions."""
    planted.save(graph, root)
    run_together([("partition_graph.py", {"root_dir": root, **arguments})], root)
    return root


def two_workers(program: str, root: Path, *loaders: str, **arguments: Any) -> list[Any]:
    """What two workers of a program say at their ends."""
    with ports("training_pg", *loaders) as where:
        common = {"root_dir": root, "out": root / "out", "seeds": SEEDS, **arguments, **where}
        run_together([(program, {**common, "node_rank": rank}) for rank in range(2)], root)
    return results_of(root / "out")


@pytest.mark.thorough
def test_unsupervised_workers_by_weight(tmp_path: Path) -> None:
    graph = planted.links()
    root = prepared(tmp_path, graph)
    found = two_workers(
        "sage_unsup.py", root, "train_loader", "test_loader", in_channels=planted.NUM_FEATURES, epochs=3
    )
    assert_learnt_alike(found, [planted.train_links(graph, seed, 128, 3) for seed in SEEDS], 0.5)


@pytest.mark.thorough
def test_bipartite_workers(tmp_path: Path) -> None:
    graph = planted.bipartite()
    root = prepared(tmp_path, graph)
    found = two_workers(
        "bipartite_sage.py", root, "train_loader", "test_loader", in_channels=planted.NUM_FEATURES, epochs=3
    )
    assert_learnt_alike(found, [planted.train_bipartite(graph, seed, 128, 3) for seed in SEEDS], 0.5)


@pytest.mark.thorough
def test_relational_workers_with_trimmed_layers(tmp_path: Path) -> None:
    graph = planted.papers()
    root = prepared(tmp_path, graph)
    found = two_workers("hetero_rgnn.py", root, "train_loader", "val_loader", num_classes=planted.NUM_CLASSES)
    assert_learnt_alike(found, [planted.train_papers(graph, seed, 64, 2) for seed in SEEDS], 0.25)


@pytest.mark.thorough
def test_subgraphs_of_links(tmp_path: Path) -> None:
    graph, pairs = planted.enclosed()
    root = prepared(tmp_path, graph)
    torch.save(pairs, root / "links.pt")
    found = two_workers(
        "subgraph_links.py", root, "train_loader", "test_loader", in_channels=planted.NUM_FEATURES, epochs=5
    )
    core = [planted.train_enclosed(graph, pairs, seed, 16, 5) for seed in SEEDS]
    assert_learnt_alike(found, core, 0.5)
