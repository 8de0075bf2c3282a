"""Random faults, one after the other: ``python -m tests.faults.run -n 200 --seed 0`` (``make faults N=200 SEED=0``).

Each case is a job of its own with one fault, all of it drawn from its seed; ``--only SEED`` runs one again. What a case
wrote is kept where it went wrong.
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

from tests.faults.job import START_LIMIT_S, Case, main  # noqa: E402
from tests.faults.kinds import FAULTS  # noqa: E402
from tests.faults.workload import prepare  # noqa: E402

_LAST_RESORT_S = 60.0  # beyond all that a job takes until its own harness has ended it


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
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


class Driver:
    """Runs cases, some at a time, and prints how each ended.

    Args:
        directory: for graph, cases and what they write.
        grace_s: seconds beyond the rules of deadlines after which a job hangs.
    """

    def __init__(self, directory: Path, grace_s: float) -> None:
        self._directory = directory
        self._grace_s = grace_s
        self._running: list[_Running] = []
        self.rows: list[tuple[Case, str, float, list[str]]] = []
        graph = directory / "graph"
        graph.mkdir()
        path = directory / "expected.json"
        pid = in_fork(lambda: path.write_text(json.dumps(prepare(graph))) and None)
        if os.waitpid(pid, 0)[1]:
            raise RuntimeError("the graph could not be made")
        self._expected = json.loads(path.read_text())

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
        graph = self._directory / "graph"
        pid = in_fork(lambda: main(case, graph, directory, self._expected, self._grace_s))
        limit_s = START_LIMIT_S + FAULTS[case.fault].rule_s + self._grace_s + _LAST_RESORT_S
        self._running.append(_Running(case, directory, pid, os.pidfd_open(pid), time.monotonic() + limit_s))

    def _reap(self) -> None:
        """Waits until a case has ended."""
        soonest = min(one.deadline for one in self._running) - time.monotonic()
        ended, _, _ = select.select([one.descriptor for one in self._running], [], [], max(0.0, soonest))
        for one in list(self._running):
            late = time.monotonic() > one.deadline
            if one.descriptor not in ended and not late:
                continue
            if late:
                os.kill(one.pid, signal.SIGKILL)
            self._running.remove(one)
            os.waitpid(one.pid, 0)
            os.close(one.descriptor)
            self._take(one, late)

    def _take(self, one: _Running, late: bool) -> None:
        path, kind = one.directory / "verdict.json", FAULTS[one.case.fault]
        if path.exists():
            verdict = json.loads(path.read_text())
        else:
            why = "HANG: the launcher itself had to be killed" if late else "the harness failed"
            log = (one.directory / "harness.txt").read_text() if (one.directory / "harness.txt").exists() else ""
            verdict = {"outcome": "none", "seconds": 0.0, "did": "", "problems": [f"{why}\n{log[-2000:]}"]}
        what = f"{kind.name}{': ' + verdict['did'] if verdict['did'] else ''}"
        moment = f"{one.case.mode}, trainer {one.case.trainer}, {one.case.moment} batches"
        self.rows.append((one.case, verdict["outcome"], verdict["seconds"], verdict["problems"]))
        print(
            f"{one.case.seed:>7}  {what:<42} {moment:<30} {verdict['seconds']:6.1f} s  {verdict['outcome']}", flush=True
        )
        for problem in verdict["problems"]:
            print(f"         WRONG: {problem}; see {one.directory}", flush=True)
        if not verdict["problems"]:
            shutil.rmtree(one.directory)

    def summary(self) -> str:
        """The table: by kind of fault, how many ended how, and the longest time after the fault."""
        lines = [f"{'fault':<28} {'cases':>5} {'same':>5} {'error':>5} {'n/a':>5} {'wrong':>5} {'longest s':>9}"]
        for number, kind in enumerate(FAULTS):
            rows = [row for row in self.rows if row[0].fault == number]
            ends = Counter("wrong" if problems else outcome.split()[0] for _, outcome, _, problems in rows)
            longest = max((row[2] for row in rows), default=0.0)
            counts = [len(rows), ends["same"], ends["error:"], ends["not"], ends["wrong"]]
            lines.append(f"{kind.name:<28} " + " ".join(f"{count:>5}" for count in counts) + f" {longest:>9.1f}")
        return "\n".join(lines)


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
    driver = Driver(directory, args.grace)
    driver.run(cases, args.parallel)
    wrong = sum(bool(row[3]) for row in driver.rows)
    print(f"\n{driver.summary()}\n\n{len(cases)} faults in {time.monotonic() - began:.0f} s, {wrong} wrong", flush=True)
    if not wrong:
        shutil.rmtree(directory)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
