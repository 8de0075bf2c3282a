"""All that there is to check and to measure with a GPU, in one command: ``python -m tests.gpu.run`` (``make gpu``).

Each step runs to its end whatever became of those before it; what each needs and does not find is said. A table at the
end has all of them. ``--list`` shows the steps, names of steps run these alone. ``PYTEST_ARGS`` of the environment are
further arguments of the step ``tests``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphlearn_dist import _C

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "gpu"
KERNELS = "tests/gpu/test_gpu_kernels.py"
# Initcheck has to see every kernel, torch's too, since it takes what others write for never written; that is slow. So
# it gets a test of each chain of kernels.
INITCHECK = [
    "test_sampling[homogeneous-uniform]",
    "test_sampling[typed-disjoint]",
    "test_sampling[homogeneous-weighted]",
    "test_sampling[homogeneous-times-last]",
    "test_long_rows[labor]",
    "test_long_rows[weighted]",
    "test_padding[typed]",
    "test_padded_batches_that_do_not_fit[shapes0]",
    "test_induced_subgraphs[typed]",
    "test_negatives[homogeneous-binary-strict-times]",
    "test_negatives[typed-triplet-plain]",
    "test_gathering_by_way_of_a_cache[20-wanted0-8]",
    "test_gathering[wanted2-33]",
]


@dataclass(frozen=True)
class Step:
    """One thing to run.

    Attributes:
        name: by which it is asked for.
        shows: what it is for.
        command: the program and its arguments, in the root of the repository.
        needs: programs that have to be on PATH.
        environment: what is set for it.
    """

    name: str
    shows: str
    command: Sequence[str]
    needs: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a step ended: ``"ok"``, ``"failed"`` or ``"missing"``, and what there is to say of it."""

    step: Step
    verdict: str
    note: str


def make_steps(pytest_args: Sequence[str] = ()) -> list[Step]:
    """Every step, the quick ones that say most first."""
    python, unbuffered = sys.executable, {"PYTHONUNBUFFERED": "1"}
    pytest = [python, "-m", "pytest", "-m", "gpu"]
    # With torch's allocator each block would be a part of memory that was written before.
    plain = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}

    def sanitizer(tool: str, options: Sequence[str], tests: Sequence[str]) -> Step:
        command = ["compute-sanitizer", "--tool", tool, *options, "--error-exitcode", "1", *pytest, "-q", *tests]
        shows = f"every kernel under {tool}" if tests == [KERNELS] else f"each chain of kernels under {tool}"
        return Step(tool, shows, command, ["compute-sanitizer"], plain)

    def benchmark(name: str, shows: str) -> Step:
        return Step(name, shows, [python, f"benchmarks/bench_{name}_gpu.py"], environment=unbuffered)

    few = [python, "benchmarks/bench_kernels_gpu.py", "--batches", "3", "--plain"]
    ours = ["--kernel-name", "kns=gld"]
    profiled = [
        *["ncu", "--kernel-name-base", "demangled", "--kernel-name", "regex:EnterNeighbors|AddNewNodes|PickTogether"],
        *["--section", "Occupancy", "--section", "SpeedOfLight", "--section", "LaunchStats", "--launch-count", "18"],
    ]
    traced = ["nsys", "profile", "--force-overwrite", "true", "--output", str(LOGS / "overlap"), "--stats", "true"]
    return [
        Step(
            "tests",
            "batches, rows, lifetimes, contexts; what was skipped, and why",
            [*pytest, "-rs", "tests/gpu", *pytest_args],
        ),
        sanitizer("memcheck", ours, [KERNELS]),
        # Its warnings would be failures: those of the flag that may be seen late (docs/gpu.md).
        sanitizer("racecheck", [*ours, "--print-level", "error"], [KERNELS]),
        sanitizer("initcheck", [], [f"{KERNELS}::{test}" for test in INITCHECK]),
        benchmark("pinning", "which host memory can be page-locked where it lies, and how fast the GPU reads it"),
        benchmark("sampling", "batches beside those of all cores; CUDA against ZERO_COPY, and edges over two GPUs"),
        benchmark("captured", "batches of one CUDA graph beside those that are launched one by one, and who waits"),
        benchmark("gather", "rows of 64 to 4,096 bytes, of its own memory, of pinned memory and of a peer"),
        benchmark("kernels", "time of each kernel of a batch, launched one by one and as a graph"),
        benchmark("overlap", "loading beside training: what each takes alone, both, and who waits"),
        Step("nsys", "the same as a time line", [*traced, python, "benchmarks/bench_overlap_gpu.py"], ["nsys"]),
        Step(
            "ncu", "occupancy of the largest kernels, and their share of the memory's rate", [*profiled, *few], ["ncu"]
        ),
    ]


def choose(steps: Sequence[Step], names: Sequence[str]) -> list[Step]:
    """The steps of these names, all of them without names; SystemExit where one is unknown."""
    known = [step.name for step in steps]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: expected some of {', '.join(known)}")
    return [step for step in steps if not names or step.name in names]


def run_step(step: Step, logs: Path) -> Outcome:
    """Runs a step, shows what it says, and keeps that in a file."""
    missing = [program for program in step.needs if shutil.which(program) is None]
    if missing:
        return Outcome(step, "missing", f"{', '.join(missing)} is not on PATH")
    print(f"\n--- {step.name}: {shlex.join(step.command)}", flush=True)
    log, begun = logs / f"{step.name}.log", time.monotonic()
    with log.open("w") as kept:
        running = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env={**os.environ, **step.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert running.stdout is not None
        for line in running.stdout:
            print(line, end="", flush=True)
            kept.write(line)
        code = running.wait()
    took = f"{time.monotonic() - begun:.0f} s"
    return Outcome(step, "ok" if code == 0 else "failed", took if code == 0 else f"exit code {code}, {took}: {log}")


def report(outcomes: Sequence[Outcome]) -> int:
    """Prints what became of each step; the exit code of the whole."""
    width = max(len(outcome.step.name) for outcome in outcomes)
    print("\nstep, verdict, what it shows")
    for outcome in outcomes:
        print(f"{outcome.step.name:{width}}  {outcome.verdict:7}  {outcome.step.shows} ({outcome.note})")
    return 1 if any(outcome.verdict == "failed" for outcome in outcomes) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="run these alone")
    parser.add_argument("--list", action="store_true", help="show the steps, and run none")
    args = parser.parse_args(arguments)
    steps = choose(make_steps(shlex.split(os.environ.get("PYTEST_ARGS", ""))), args.steps)
    if args.list:
        for step in steps:
            print(f"{step.name}: {step.shows}\n    {shlex.join(step.command)}")
        return 0
    if not _C.cuda_is_built() or _C.cuda_device_count() == 0:  # every test would be skipped, and that is no failure
        what = "no GPU is usable" if _C.cuda_is_built() else "the core was built without CUDA"
        raise SystemExit(f"{what}: nothing was run")
    LOGS.mkdir(parents=True, exist_ok=True)
    return report([run_step(step, LOGS) for step in steps])


if __name__ == "__main__":
    sys.exit(main())
