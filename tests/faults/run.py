"""Random faults, one after the other: ``python -m tests.faults.run -n 200 --seed 0`` (``make faults N=200 SEED=0``).

Each case is a job of its own with one fault, all of it drawn from its seed; ``--only SEED`` runs one again. It ends
right, wrong, with a hang, or with an error of the harness, and the last three say why. What a case wrote is kept where
it did not end right.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"  # before imports: a process with threads cannot be forked

import torch_geometric.data  # noqa: E402, F401  seconds of a core, which every job would need in its last moments

from graphlearn_dist.cluster.jobs.launcher import describe_exit  # noqa: E402
from tests.faults.job import START_LIMIT_S, Case, Verdict, main  # noqa: E402
from tests.faults.kinds import FAULTS  # noqa: E402
from tests.faults.workload import Digests, prepare  # noqa: E402
from tests.support.warm import STACKS  # noqa: E402

_LAST_RESORT_S = START_LIMIT_S + 60.0  # beyond the rules and the grace: until its own harness has ended a job
_STACKS_S = 2.0  # that a harness gets to write what its threads do


@dataclass
class _Running:
    """A case under way."""

    case: Case
    directory: Path
    pid: int
    descriptor: int
    deadline: float


def draw_cases(count: int, seed: int) -> list[Case]:
    """Cases of the seeds from ``1000 * seed`` on; all kinds of fault come equally often, in an order by chance."""
    rng = random.Random(seed)
    kinds: list[int] = []
    while len(kinds) < count:
        kinds += rng.sample(range(len(FAULTS)), len(FAULTS))
    return [Case.draw(1000 * seed + number, kind) for number, kind in enumerate(kinds[:count])]


def in_fork(function: Callable[[], None]) -> int:
    """Runs it in a fork, which keeps this process as it is; the fork's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever this process's libraries do about it
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def make_graph(directory: Path) -> dict[str, Digests]:
    """Writes the graph of all cases to ``directory / "graph"``; by mode, what each trainer has to get."""
    graph, path = directory / "graph", directory / "expected.json"
    graph.mkdir()
    pid = in_fork(lambda: path.write_text(json.dumps(prepare(graph))) and None)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the graph could not be made")
    expected: dict[str, Digests] = json.loads(path.read_text())
    return expected


def _num_starved() -> int:
    """How many processes the kernel has killed for want of memory, on this machine."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts.get("oom_kill", 0))


class Driver:
    """Runs cases, some at a time, and prints how each ended.

    Args:
        directory: for cases and what they write.
        play: runs a case in a process of its own, and leaves its verdict in the directory that it is given.
        limit_s: seconds that the process of a case may take before it is killed, beyond the rules of its fault.
    """

    def __init__(self, directory: Path, play: Callable[[Case, Path], None], limit_s: float) -> None:
        self._directory = directory
        self._play = play
        self._limit_s = limit_s
        self._num_starved = _num_starved()
        self._running: list[_Running] = []
        self.rows: list[tuple[Case, Verdict]] = []

    def run(self, cases: list[Case], parallel: int) -> None:
        """Runs all, at most ``parallel`` at a time."""
        waiting = list(reversed(cases))
        while waiting or self._running:
            while waiting and len(self._running) < parallel:
                self._start(waiting.pop())
            self._reap()

    def _start(self, case: Case) -> None:
        directory = self._directory / str(case.seed)
        directory.mkdir()
        pid = in_fork(lambda: self._play(case, directory))
        deadline = time.monotonic() + FAULTS[case.fault].rule_s + self._limit_s
        self._running.append(_Running(case, directory, pid, os.pidfd_open(pid), deadline))

    def _reap(self) -> None:
        """Waits until a case has ended."""
        soonest = min(one.deadline for one in self._running) - time.monotonic()
        ended, _, _ = select.select([one.descriptor for one in self._running], [], [], max(0.0, soonest))
        for one in list(self._running):
            late = one.descriptor not in ended and time.monotonic() > one.deadline
            if one.descriptor not in ended and not late:
                continue
            if late:
                os.kill(one.pid, STACKS)
                select.select([one.descriptor], [], [], _STACKS_S)
                os.kill(one.pid, signal.SIGKILL)
            self._running.remove(one)
            status = os.waitstatus_to_exitcode(os.waitpid(one.pid, 0)[1])
            os.close(one.descriptor)
            self._take(one.case, one.directory, self._verdict(one.directory, status, late))

    def _verdict(self, directory: Path, status: int, late: bool) -> Verdict:
        """What the process of a case has left; what it died of where that is no verdict."""
        path, log = directory / "verdict.json", directory / "harness.txt"
        if late:
            return Verdict("none", hang=f"its harness had to be killed\n{_end_of(log)}")
        if status == 0 and path.exists():
            return Verdict(**json.loads(path.read_text()))
        how = describe_exit(status if status >= 0 else 128 - status)
        if starved := _num_starved() - self._num_starved:
            how += f" ({starved} processes of this machine were killed for want of memory meanwhile)"
        when = "after its verdict" if path.exists() else "without a verdict"
        return Verdict("none", harness=f"its process {how} {when}\n{_end_of(log)}")

    def _take(self, case: Case, directory: Path, verdict: Verdict) -> None:
        self.rows.append((case, verdict))
        name = FAULTS[case.fault].name
        what = f"{name}{': ' + verdict.did if verdict.did else ''}"
        moment = f"{case.mode}, trainer {case.trainer}, {case.moment} batches"
        print(f"{case.seed:>7}  {what:<42} {moment:<30} {verdict.seconds:6.1f} s  {verdict.outcome}", flush=True)
        for complaint in verdict.complaints():
            print(f"         {complaint}; see {directory}", flush=True)
        if verdict.kind == "right":
            shutil.rmtree(directory)

    def summary(self) -> str:
        """The table: by kind of fault, how many ended how, and the longest time after the fault."""
        titles = ("same", "error", "n/a", "wrong", "hang", "harness")
        lines = [f"{'fault':<28} {'cases':>5} " + " ".join(f"{title:>7}" for title in titles) + f" {'longest s':>9}"]
        for number, kind in enumerate(FAULTS):
            verdicts = [verdict for case, verdict in self.rows if case.fault == number]
            if not verdicts:
                continue
            ends = Counter(_title(verdict) for verdict in verdicts)
            longest = max(verdict.seconds for verdict in verdicts)
            counts = " ".join(f"{ends[title]:>7}" for title in titles)
            lines.append(f"{kind.name:<28} {len(verdicts):>5} {counts} {longest:>9.1f}")
        return "\n".join(lines)

    def counts(self) -> str:
        """How many cases ended how, in words."""
        ends = Counter(verdict.kind for _, verdict in self.rows)
        return f"{ends['wrong']} wrong, {ends['hang']} hung, {ends['harness error']} errors of the harness"


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else "it wrote nothing"


def _title(verdict: Verdict) -> str:
    """The column of the table."""
    if verdict.kind != "right":
        return verdict.kind.removesuffix(" error")
    return {"same": "same", "error:": "error", "not": "n/a"}[verdict.outcome.split()[0]]


def run(argv: list[str]) -> int:
    """The command line; 1 where a job did not end as it has to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=20, help="cases (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn from (default 0)")
    parser.add_argument("--only", type=int, help="the seed of one case of that run, to run it alone")
    parser.add_argument("--kind", help="only faults whose name has this in it")
    parser.add_argument("--parallel", type=int, default=2, help="jobs at a time (default 2)")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds beyond the rules of deadlines (default 10)")
    args = parser.parse_args(argv)
    cases = [
        case
        for case in draw_cases(args.n, args.seed)
        if args.only in (None, case.seed) and (args.kind or "") in FAULTS[case.fault].name
    ]
    directory = Path(tempfile.mkdtemp(prefix="gld-faults-"))
    began = time.monotonic()
    expected = make_graph(directory)
    driver = Driver(
        directory,
        lambda case, own: main(case, directory / "graph", own, expected[case.mode], args.grace),
        _LAST_RESORT_S + args.grace,
    )
    driver.run(cases, args.parallel)
    took = f"{len(cases)} faults in {time.monotonic() - began:.0f} s"
    print(f"\n{driver.summary()}\n\n{took}, {driver.counts()}", flush=True)
    is_right = all(verdict.kind == "right" for _, verdict in driver.rows)
    if is_right:
        shutil.rmtree(directory)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
