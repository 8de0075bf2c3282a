"""The benchmark harness: graphs are what they claim, work is counted, and what fails becomes a row that says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import bench_sampling  # noqa: E402
import ceilings  # noqa: E402
import report  # noqa: E402
from graphs import GraphFiles, PowerLaw, make_graph, read_graph  # noqa: E402
from peers.base import FEATURES, LOADER, SAMPLE, Peer, Setting, Unsupported, Work, batch_seeds  # noqa: E402
from peers.driver import OURS, Entry, Found, Worker, WorkerLost, build, find_peers, run  # noqa: E402
from peers.worker import run as run_in_process  # noqa: E402

DEADLINE_S = 60.0  # generous: only a hang takes as long


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> GraphFiles:
    graph = make_graph(PowerLaw(1000, 20_000), tmp_path_factory.mktemp("graphs"))
    graph.with_features(4)
    graph.with_weights()
    return graph


def setting_of(files: GraphFiles, **changes: Any) -> Setting:
    values: dict[str, Any] = {
        "directories": {"": str(files.directory)},
        "fanout": [3, 2],
        "batch_size": 16,
        "threads": 1,
    }
    return Setting(**{**values, **changes})


# --- graphs ------------------------------------------------------------------------------------------------------


def test_generated_graph_has_the_counts_asked_for_and_sorted_rows(files: GraphFiles) -> None:
    indptr, indices = files.load("indptr"), files.load("indices")
    degrees = np.diff(indptr)
    assert (indptr.size, indices.size, indptr[-1]) == (1001, 20_000, 20_000)
    assert degrees.min() >= PowerLaw(1000, 20_000).floor
    assert degrees.max() > 5 * np.median(degrees)  # a heavy tail
    assert 0 <= indices.min() <= indices.max() < 1000
    rows = np.repeat(np.arange(1000), degrees)
    assert np.all(np.diff(rows * 1000 + indices) >= 0)
    assert np.array_equal(files.load("indices32"), indices)
    assert np.array_equal(np.sort(files.load("seeds")), np.arange(1000))


def test_a_graph_is_a_function_of_its_spec(files: GraphFiles, tmp_path: Path) -> None:
    again = make_graph(PowerLaw(1000, 20_000), tmp_path)
    other = make_graph(PowerLaw(1000, 20_000, seed=1), tmp_path)
    assert np.array_equal(again.load("indices"), files.load("indices"))
    assert not np.array_equal(other.load("indices"), files.load("indices"))


def test_a_made_graph_is_taken_from_the_cache(tmp_path: Path) -> None:
    first = make_graph(PowerLaw(50, 1000), tmp_path)
    marker = first.directory / "indptr.npy"
    before = marker.stat().st_mtime_ns
    make_graph(PowerLaw(50, 1000), tmp_path)
    assert marker.stat().st_mtime_ns == before
    assert not list(tmp_path.glob(".part-*"))


def test_too_few_edges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="100 edges: expected at least 12 for each of 50 nodes"):
        make_graph(PowerLaw(50, 100), tmp_path)


def test_real_graphs_are_read_as_edges_or_rows(tmp_path: Path) -> None:
    edges = np.array([[3, 0, 1, 2, 3], [1, 1, 0, 0, 0]])
    np.savez(tmp_path / "coo.npz", edge_index=edges)
    np.savez(tmp_path / "csc.npz", indptr=[0, 3, 5, 5, 5], indices=[1, 2, 3, 0, 3])
    np.savez(tmp_path / "none.npz", nodes=edges)
    for name in ("coo", "csc"):
        graph = read_graph(tmp_path / f"{name}.npz", tmp_path)
        assert graph.load("indptr").tolist() == [0, 3, 5, 5, 5]
        assert graph.load("indices").tolist() == [1, 2, 3, 0, 3]
    with pytest.raises(SystemExit, match="expected edge_index, or indptr and indices; found"):
        read_graph(tmp_path / "none.npz", tmp_path)


def test_seeds_are_the_same_for_every_peer_and_wrap_around(files: GraphFiles) -> None:
    setting = setting_of(files)
    order = torch.from_numpy(files.load("seeds"))
    assert torch.equal(batch_seeds(setting, 2, 3), order[32:80])
    assert torch.equal(batch_seeds(setting, 62, 1), torch.cat([order[992:], order[:8]]))


# --- work --------------------------------------------------------------------------------------------------------


class Counting(Peer):
    """Hands out batches of known work."""

    @staticmethod
    def version() -> str:
        return "1"

    def build(self) -> None:
        self.seen: list[int] = []

    def sample(self, seeds: torch.Tensor) -> Any:
        self.seen += seeds.tolist()
        return seeds

    def work(self, batch: Any) -> Work:
        return Work(2 * batch.numel(), 3 * batch.numel())


def test_a_run_counts_the_work_of_its_batches(files: GraphFiles) -> None:
    peer = Counting(setting_of(files))
    peer.build()
    result = run_in_process(peer, SAMPLE, 1, 3)
    assert (result["batches"], result["edges"], result["nodes"]) == (3, 2 * 48, 3 * 48)
    assert peer.seen == batch_seeds(peer.setting, 1, 3).tolist()
    with pytest.raises(Unsupported, match="features"):
        run_in_process(peer, FEATURES, 0, 1)


@pytest.mark.parametrize(("change", "what"), [({"draw": "labor"}, "labor draws"), ({"ids": "int32"}, "int32 storage")])
def test_a_setting_beyond_a_peer_is_refused(files: GraphFiles, change: dict[str, Any], what: str) -> None:
    with pytest.raises(Unsupported, match=f"no {what}"):
        Counting(setting_of(files, **change))


def test_our_own_batches_are_counted_alike_in_every_mode(files: GraphFiles) -> None:
    with Worker(OURS, sys.executable, 1) as worker:
        built = build(worker, setting_of(files, features=4))
        assert built["resident_after"]["anonymous"] > 0
        answers = {mode: run(worker, mode, 0, 3) for mode in (SAMPLE, FEATURES, LOADER)}
    for answer in answers.values():
        assert answer["batches"] == 3
        # At least 12 neighbors each: 16 seeds take 48 edges, their at most 48 new nodes two each.
        assert 3 * 48 < answer["edges"] <= 3 * (48 + 96)
        assert 3 * 16 < answer["nodes"] <= 3 * (16 + 48 + 96)
        assert answer["seconds"] > 0


# --- peers that fail ---------------------------------------------------------------------------------------------


def test_a_peer_that_cannot_be_imported_is_named_with_the_reason() -> None:
    found, missing = find_peers([Entry("nothing", "no_such_peer")], [sys.executable])
    assert found == []
    assert missing == {"nothing": "ModuleNotFoundError: No module named 'peers.no_such_peer'"}


def test_a_worker_that_does_not_answer_is_lost_and_ended(files: GraphFiles) -> None:
    with Worker(OURS, sys.executable, 1) as worker:
        process = worker._process
        with pytest.raises(WorkerLost, match="no answer to build in 0 s"):
            worker.ask(0.0, op="build", setting={})
    assert process.returncode is not None


def test_an_error_of_a_peer_is_its_answer(files: GraphFiles) -> None:
    with Worker(OURS, sys.executable, 1) as worker:
        reply = worker.ask(DEADLINE_S, op="run", mode=SAMPLE, first=0, count=1)
        assert "RuntimeError: run: nothing was built" in reply["error"]
        assert "build_seconds" in build(worker, setting_of(files))  # and it goes on


# --- the whole ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_smoke_run_measures_every_kind_of_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = bench_sampling.main(["--smoke", "--cache", str(tmp_path)])
    measured = {(row["group"], row["mode"]) for row in content["rows"] if "problem" not in row}
    assert {("1 thread, int32", mode) for mode in (SAMPLE, FEATURES, LOADER)} <= measured
    assert {(f"1 thread, int32, {kind}", SAMPLE) for kind in bench_sampling.ALSO} <= measured
    by_ids = {row["ids"]: row for row in content["rows"] if row["mode"] == SAMPLE and "," not in row["group"][10:]}
    assert by_ids["int32"]["edges_per_batch"] == by_ids["int64"]["edges_per_batch"]
    assert set(content["ceilings"]) == {"memcpy_bytes", "random_4_byte_reads", "random_64_byte_reads"}
    json.dumps(content)
    assert "random 4-byte reads" in capsys.readouterr().out


def test_peers_share_memory_by_turns_with_this_project_in_each() -> None:
    peers = [Found(Entry(name, name), "python", "1", False, "") for name in "abcde"]
    names = [[peer.entry.label for peer in some] for some in bench_sampling.fitting(peers, 1.0, 3.5)]
    assert names == [["a", "b", "c"], ["a", "d", "e"]]
    assert [len(some) for some in bench_sampling.fitting(peers, 1.0, 0.5)] == [2, 2, 2, 2]
    assert bench_sampling.fitting(peers[:1], 1.0, 9.0) == [peers[:1]]


def test_a_slow_peer_makes_fewer_batches_and_a_lost_one_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, int]] = []

    def answer(worker: str, mode: str, first: int, count: int) -> dict[str, Any]:
        asked.append((worker, first, count))
        if worker == "lost":
            raise WorkerLost("it ended")
        return {"seconds": count * (1.0 if worker == "slow" else 0.01)}

    monkeypatch.setattr(bench_sampling, "run", answer)
    args = bench_sampling.parse(["--batches", "10", "--repeats", "2", "--turn-seconds", "4"])
    running: Any = {name: name for name in ("quick", "slow", "lost")}
    replies = [label for label, _ in bench_sampling.in_turns(running, SAMPLE, args)]
    assert replies == ["lost", "quick", "slow", "quick", "slow"]
    assert asked[:5] == [("quick", 0, 4), ("slow", 0, 4), ("lost", 0, 4), ("quick", 10, 10), ("slow", 10, 4)]
    assert list(running) == ["quick", "slow"]


def test_ceiling_copies_the_rows_it_times() -> None:
    data = np.random.default_rng(0).integers(0, 256, (100, 400), np.uint8)
    rows = np.random.default_rng(1).integers(0, 100, 300)
    out = np.zeros((300, 400), np.uint8)
    ceilings.copy_rows(data, rows, 4096, out)
    assert np.array_equal(out, data[rows])
    with pytest.raises(SystemExit, match="rows of 3 bytes"):
        ceilings.copy_rows(data[:, :3], rows, 4096, out)


def row(
    peer: str, mode: str, value: float, *, threads: int = 1, ids: str = "int32", group: str = "g"
) -> dict[str, Any]:
    figures: dict[str, Any] = {key: [value, value] for key in ("medges_per_s", "medges_per_cpu_s", "batches_per_s")}
    figures.update(edges_per_batch=1e6, nodes_per_batch=1e5, kind="")
    return {"group": group, "mode": mode, "threads": threads, "ids": ids, "peer": peer, "replace": False, **figures}


def test_summary_compares_best_with_best() -> None:
    rows = [
        row("graphlearn_dist", SAMPLE, 30.0),
        row("graphlearn_dist", SAMPLE, 50.0, threads=2),
        row("DGL fused", SAMPLE, 5.0),
        row("DGL fused", SAMPLE, 10.0, ids="int64"),
        row("graphlearn_dist", LOADER, 8.0),
        row("torch-sparse", LOADER, 2.0),
        row("graphlearn_dist", SAMPLE, 900.0, group="typed"),
        {
            "peer": "GLT, seeded",
            "group": "g",
            "mode": SAMPLE,
            "threads": 1,
            "ids": "int32",
            "problem": "lost: it ended",
        },
    ]
    lines = {line["what"]: line for line in report.summarize(rows)}
    assert lines["sampling, 1 thread"]["ratio"] == 3.0
    assert lines["sampling, 1 thread"]["text"].endswith("goal 4, NOT met")
    assert "DGL fused (int64)" in lines["sampling, 1 thread"]["text"]
    assert lines["loader, 1 thread, PyG"]["text"].endswith("goal 3, met")
    assert lines["two threads over one"]["ratio"] == pytest.approx(5 / 3)


def test_plot_shows_every_row_with_figures(tmp_path: Path) -> None:
    rows = [row("graphlearn_dist", SAMPLE, 30.0), row("a <peer>", SAMPLE, 5.0)]
    limits = {"memcpy_bytes": 1e10, "random_4_byte_reads": 1e8}
    text = report.write_plot(tmp_path / "plot.svg", rows, limits).read_text()
    assert text.count("<rect") == 2
    assert "a &lt;peer&gt;" in text


def test_table_for_the_readme_has_the_best_figure_of_each_kind() -> None:
    rows = [
        row("graphlearn_dist", LOADER, 8.0, threads=2),
        row("graphlearn_dist", SAMPLE, 30.0),
        row("graphlearn_dist", SAMPLE, 40.0, ids="int64"),
        row("graphlearn_dist", SAMPLE, 20.0, group="1 thread, typed"),
        row("DGL fused", SAMPLE, 5.0),
        {"peer": "GLT, seeded", "problem": "lost: it ended"},
    ]
    assert report.markdown(rows).splitlines() == [
        "| library | sample, 1 thread | loader, 2 threads | typed | edges, nodes of a batch |",
        "|---|---|---|---|---|",
        "| graphlearn_dist | 40 | 8 | 20 | 1000 k, 100 k |",
        "| DGL fused | 5 |  |  | 1000 k, 100 k |",
    ]
