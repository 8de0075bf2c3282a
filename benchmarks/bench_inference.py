"""Rows of all nodes by a two-layer GraphSAGE: ``inference.infer`` beside PyG and DGL.

Each run is a process of its own, in turns, with the same parameters; its time begins with the graph in memory. Memory
is told twice: the peak of the whole process (imports, the graph, what loading it takes), and by how much it grows while
it infers, beside which stand the rows of two layers. The rows are compared.

- PyG: ``inference`` of ``BasicGNN``. Its ``NeighborLoader`` samples by pyg-lib or torch-sparse where the interpreter of
  ``--pyg-python`` has one of them (``peers/make_env.sh pyg DIRECTORY`` makes such an environment); else by this
  project's ``PyGSampler``, which leaves PyG the batches and the layers.
- DGL, where ``--dgl-python`` has it (``peers/make_env.sh dgl DIRECTORY``): a loader over all nodes for each layer, as
  in its examples.

    python benchmarks/bench_inference.py [--nodes N --edges N] [--pyg-python PYTHON] [--dgl-python PYTHON] [--json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from graphs import GraphFiles, PowerLaw, default_cache, make_graph, open_graph

CLOSE = {"pyg": 1e-5, "dgl": 5e-5}  # DGL sums in another order
BATCH_SIZE = 65_536  # of the peers: PyG keeps the rows of all of a batch's nodes, with 4,096 seeds more than 24 GB
Parameters = dict[str, Any]


def make_parameters(features: int, hidden: int) -> Parameters:
    """Of two layers, by PyG's names."""
    import torch

    torch.manual_seed(0)
    found: Parameters = {}
    for layer, width in enumerate((features, hidden)):
        for name in ("lin_l", "lin_r"):
            linear = torch.nn.Linear(width, hidden, bias=name == "lin_l")
            found |= {f"convs.{layer}.{name}.{key}": value for key, value in linear.state_dict().items()}
    return found


def pyg_model(parameters: Parameters) -> Any:
    """The model that has them."""
    from torch_geometric.nn import GraphSAGE

    hidden, features = parameters["convs.0.lin_l.weight"].shape
    model = GraphSAGE(features, hidden, 2, hidden)
    model.load_state_dict(parameters)
    return model.eval()


class Watch:
    """Times the block, and sees by how much the process grows in it at most.

    Attributes:
        seconds: that the block took.
        before_bytes: of memory that the process had when it began.
        grown_bytes: the most that it had in the block, less that.
        peak_bytes: the most that it ever had.
    """

    def __enter__(self) -> Watch:
        self.before_bytes, self._peak_before = memory_in("VmRSS"), memory_in("VmHWM")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self.grown_bytes = memory_in("VmHWM") - self.before_bytes
        self.peak_bytes = max(self._peak_before, memory_in("VmHWM"))


def memory_in(name: str) -> int:
    """Bytes of this process, of a line of ``/proc/self/status``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) << 10


def infer_ours(graph: GraphFiles, features: int, parameters: Parameters, threads: int) -> tuple[Any, Watch]:
    """Rows, and what they took."""
    import torch

    from graphlearn_dist.data import Dataset
    from graphlearn_dist.inference import InferenceOptions, infer

    dataset = Dataset(edge_dir="in")
    arrays = (torch.from_numpy(graph.load("indices32")), torch.from_numpy(graph.load("indptr")))
    dataset.init_graph(arrays, layout="CSC", num_nodes=graph.nodes)
    del arrays  # the data set has its own
    dataset.init_node_features(torch.from_numpy(graph.load(graph.with_features(features))))
    model = pyg_model(parameters)
    with Watch() as watch:
        rows = infer(model, dataset, options=InferenceOptions(num_threads=threads)).rows()
    return rows, watch


def infer_pyg(graph: GraphFiles, features: int, parameters: Parameters, threads: int) -> tuple[Any, Watch]:
    """The same by PyG."""
    import torch
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    torch.set_num_threads(threads)
    indptr, sources = (torch.from_numpy(graph.load(name)) for name in ("indptr", "indices"))
    targets = torch.repeat_interleave(torch.arange(graph.nodes), indptr.diff())
    x = torch.from_numpy(graph.load(graph.with_features(features)))
    data = Data(x=x, edge_index=torch.stack([sources, targets]))
    more: dict[str, Any] = {}
    if not has_own_sampler():
        from graphlearn_dist.distributed.pyg_sampler import PyGSampler

        more["neighbor_sampler"] = PyGSampler(data, [-1], num_threads=threads)
    loader = NeighborLoader(data, [-1], batch_size=BATCH_SIZE, **more)
    model = pyg_model(parameters)
    with Watch() as watch, torch.no_grad():
        rows = model.inference(loader)
    return rows, watch


def infer_dgl(graph: GraphFiles, features: int, parameters: Parameters, threads: int) -> tuple[Any, Watch]:
    """The same by DGL."""
    import dgl
    import torch
    from dgl.dataloading import DataLoader, MultiLayerFullNeighborSampler
    from dgl.nn import SAGEConv

    torch.set_num_threads(threads)
    arrays = [torch.from_numpy(graph.load(name)) for name in ("indptr", "indices")]
    dgl_graph = dgl.graph(("csc", (*arrays, torch.empty(0, dtype=torch.int64))), num_nodes=graph.nodes)
    rows = torch.from_numpy(graph.load(graph.with_features(features)))
    layers = []
    for layer in range(2):
        weights = {name: parameters[f"convs.{layer}.{name}"] for name in ("lin_l.weight", "lin_l.bias", "lin_r.weight")}
        conv = SAGEConv(weights["lin_l.weight"].size(1), weights["lin_l.weight"].size(0), "mean")
        own = {"fc_neigh.weight": weights["lin_l.weight"], "fc_self.weight": weights["lin_r.weight"]}
        conv.load_state_dict({**own, "fc_self.bias": weights["lin_l.bias"]})
        layers.append(conv)
    with Watch() as watch, torch.no_grad():
        for number, conv in enumerate(layers):
            sampler = MultiLayerFullNeighborSampler(1)
            loader = DataLoader(dgl_graph, torch.arange(graph.nodes), sampler, batch_size=BATCH_SIZE)
            made = torch.empty(graph.nodes, conv._out_feats)
            for inputs, outputs, (block,) in loader:
                found = conv(block, rows[inputs])
                made[outputs] = found.relu() if number == 0 else found
            rows = made
    return rows, watch


def has_own_sampler() -> bool:
    """Whether PyG can sample here by what it knows."""
    return any(importlib.util.find_spec(name) is not None for name in ("pyg_lib", "torch_sparse"))


def run_here(args: argparse.Namespace) -> None:
    """What the process of one turn does; it prints its figures."""
    import torch

    graph = open_graph(Path(args.directory))
    by = {"ours": infer_ours, "pyg": infer_pyg, "dgl": infer_dgl}[args.run]
    rows, watch = by(graph, args.features, torch.load(args.parameters, weights_only=True), args.threads)
    np.save(args.rows, rows.numpy())
    figures = {name: getattr(watch, name) for name in ("seconds", "before_bytes", "grown_bytes", "peak_bytes")}
    print(json.dumps({**figures, "own_sampler": args.run == "pyg" and has_own_sampler()}))


def turn(args: argparse.Namespace, graph: GraphFiles, run: str, rows: Path, parameters: Path) -> dict[str, Any]:
    """The figures of a process."""
    python = {"pyg": args.pyg_python, "dgl": args.dgl_python}.get(run) or sys.executable
    words = ["--run", run, "--directory", str(graph.directory), "--rows", str(rows), "--parameters", str(parameters)]
    sizes = ["--features", str(args.features), "--threads", str(args.threads)]
    output = subprocess.run([python, __file__, *words, *sizes], stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(json.loads(output.strip().splitlines()[-1]))


def difference(rows: Path, others: Path) -> float:
    """The largest, relative to the largest number."""
    one, other = np.load(rows, mmap_mode="r"), np.load(others, mmap_mode="r")
    return float(np.abs(one - other).max() / np.abs(other).max())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2_400_000)
    parser.add_argument("--edges", type=int, default=124_000_000)
    parser.add_argument("--features", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peers", nargs="*", choices=("pyg", "dgl"), default=["pyg", "dgl"])
    parser.add_argument("--pyg-python", metavar="PYTHON", help="interpreter that has PyG with pyg-lib or torch-sparse")
    parser.add_argument("--dgl-python", metavar="PYTHON", help="interpreter that has DGL")
    parser.add_argument("--json", action="store_true", help="write results/inference.json")
    for name in ("--run", "--directory", "--rows", "--parameters"):  # of the process of one turn
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run_here(args)
        return 0
    import torch
    from harness import median, print_table, spread, write_json

    graph = make_graph(PowerLaw(args.nodes, args.edges), default_cache())
    graph.with_features(args.features)
    runs = ["ours", *(peer for peer in args.peers if peer != "dgl" or args.dgl_python)]
    found: dict[str, list[dict[str, Any]]] = {run: [] for run in runs}
    with tempfile.TemporaryDirectory(dir=graph.directory) as folder:
        parameters = Path(folder) / "parameters.pt"
        torch.save(make_parameters(args.features, args.hidden), parameters)
        files = {run: Path(folder) / f"{run}.npy" for run in runs}
        for _ in range(args.turns):
            for run, figures in found.items():
                figures.append(turn(args, graph, run, files[run], parameters))
        far = {run: difference(files["ours"], files[run]) for run in runs[1:]}
    own = all(each["own_sampler"] for each in found.get("pyg", []))
    names = {"ours": "infer", "pyg": "PyG" if own else "PyG over PyGSampler", "dgl": "DGL"}
    rows = [
        [
            names[run],
            spread([each["seconds"] for each in turns]),
            *(f"{turns[-1][name] / 2**30:.2f}" for name in ("peak_bytes", "before_bytes", "grown_bytes")),
        ]
        for run, turns in found.items()
    ]
    title = f"{graph.nodes:,} nodes, {graph.edges:,} edges, {args.features} features, {args.threads} threads"
    print_table(title, ["", "seconds", "peak GiB", "before", "grown by"], rows)
    layers = 2 * 4 * graph.nodes * args.hidden
    features = 4 * graph.nodes * args.features
    grown = max(each["grown_bytes"] for each in found["ours"])
    print(
        f"\nfeatures and the rows of two layers are {(features + layers) / 2**30:.2f} GiB; "
        f"features and what infer grows by are {(features + grown) / (features + layers):.3f} of that"
    )
    seconds = {run: median([each["seconds"] for each in turns]) for run, turns in found.items()}
    for run in runs[1:]:
        times = seconds[run] / seconds["ours"]
        print(f"\n{times:.2f} times as fast as {names[run]}; largest relative difference of the rows {far[run]:.1e}")
    if args.json:
        setting = {name: getattr(args, name) for name in ("nodes", "edges", "features", "hidden", "threads")}
        load = os.getloadavg()
        write_json("inference", {"setting": setting, "turns": found, "difference": far, "load": load})
    if not all(far[run] <= CLOSE[run] for run in far):
        print(f"bench_inference.py: expected rows within {CLOSE}, got {far}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
