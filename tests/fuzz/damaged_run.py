"""Damages partition directories and uses them, checksums off, and tells what ended in anything but a refusal.

    python -m tests.fuzz.damaged_run --cases 10000 --jobs 2

A case is a function of ``--seed`` and its number, so that ``--first N --cases 1`` runs case N again. ``--core FILE``
is another build of the native core, such as one with AddressSanitizer (``make fuzz-files``). It is given arrays in
memory of their own then, and not mapped ones, so that a read beyond an array's end is seen.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASE_TIMEOUT_S = 300.0  # of a machine that is busy otherwise; a case takes tenths of a second
CASES_OF_A_FORK = 50
CASES_OF_A_LINE = 500  # a run of thousands says how far it is
MAX_GROWTH_BYTES = 2 << 30


@dataclass
class Tally:
    """What cases came to.

    Attributes:
        cases: how many ran.
        refused: of those, how many met an error that says what is damaged.
        failures: what else happened, by case.
    """

    cases: int = 0
    refused: int = 0
    failures: list[str] = field(default_factory=list)


def load_core(path: Path) -> None:
    """Takes the native core from another file than the package's; before anything of the package is imported."""
    spec = importlib.util.spec_from_file_location("graphlearn_dist._C", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["graphlearn_dist._C"] = module
    spec.loader.exec_module(module)


def take_arrays_into_memory() -> None:
    """Arrays are copied out of their files: AddressSanitizer knows where such end, and not where mapped ones do."""
    from graphlearn_dist.partition import layout
    from graphlearn_dist.partition.storage import open_array

    def opened(*arguments: Any, **options: Any) -> Any:
        return open_array(*arguments, **options).clone()

    layout.open_array = opened


def read_directories() -> dict[str, dict[str, bytes]]:
    """The directories that cases begin with: by name, every file. Made in a process of its own, whose threads a fork
    would not have."""
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                from tests.fuzz.partitions import write_directories

                write_directories(Path(folder))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        if status != 0:
            raise RuntimeError("the directories could not be written; see above")
        return {
            root.name: {
                str(path.relative_to(root / "partitions")): path.read_bytes()
                for path in sorted((root / "partitions").rglob("*"))
                if path.is_file()
            }
            for root in sorted(Path(folder).iterdir())
        }


def case_of(directories: Mapping[str, Mapping[str, bytes]], seed: int, number: int) -> tuple[str, dict[str, Any], str]:
    """(what was done, the files that differ, the directory) of a case."""
    from tests.fuzz.damage import damaged

    numbers = random.Random(f"{seed} {number}")
    name = numbers.choice(sorted(directories))
    done, changed = damaged(directories[name], numbers)
    return f"{name}: {done}", changed, name


class Checkout:
    """Directories on disk, of which the files of one case at a time are others."""

    def __init__(self, root: Path, directories: Mapping[str, Mapping[str, bytes]]) -> None:
        self._root, self._directories = root, directories
        for name, files in directories.items():
            for path in files:
                self._put(name, path, files[path])

    def _put(self, name: str, path: str, data: bytes | None) -> None:
        # Another file under the name: what an earlier case has mapped stays as it is.
        target = self._root / name / path
        target.unlink(missing_ok=True)
        if data is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)

    def change(self, name: str, changed: Mapping[str, bytes | None]) -> Path:
        for path, data in changed.items():
            self._put(name, path, data)
        return self._root / name

    def restore(self, name: str, changed: Mapping[str, bytes | None]) -> None:
        for path in changed:
            self._put(name, path, self._directories[name].get(path))


def run_cases(directories: Any, seed: int, numbers: range, output: Any, *, limit_memory: bool) -> None:
    """Runs cases and writes a line before each and after it."""
    import torch

    from tests.fuzz.partitions import use

    torch.set_num_threads(1)
    if limit_memory:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MAX_GROWTH_BYTES, resource.RLIM_INFINITY))
    folder = Path(tempfile.mkdtemp(prefix="gld-damaged-"))
    try:
        checkout = Checkout(folder, directories)
        for number in numbers:
            print("case", number, file=output, flush=True)
            _, changed, name = case_of(directories, seed, number)
            root = checkout.change(name, changed)
            try:
                attempts = use(root)
                print("done", int(bool(attempts.refused)), file=output, flush=True)
            except BaseException:
                text = traceback.format_exc().replace("\n", "\\n")
                print("failed", text, file=output, flush=True)
            checkout.restore(name, changed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fork_cases(directories: Any, seed: int, numbers: range, tally: Tally, *, limit_memory: bool) -> int:
    """Runs cases in a forked process; gives the number of the next, beyond one that ended the process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            with os.fdopen(writing, "w") as output:
                run_cases(directories, seed, numbers, output, limit_memory=limit_memory)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writing)
    current, is_open = numbers.start, False
    try:
        for line in _lines(reading):
            word, _, rest = line.partition(" ")
            if word == "case":
                current, is_open = int(rest), True
                continue
            is_open = False
            tally.cases += 1
            tally.refused += word == "done" and rest == "1"
            if word == "failed":
                tally.failures.append(f"{_name(directories, seed, current)}\n{rest.replace(chr(92) + 'n', chr(10))}")
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        is_open = True
    finally:
        os.close(reading)
    _, status = os.waitpid(child, 0)
    if is_open or status != 0:
        code = os.waitstatus_to_exitcode(status)
        tally.cases += 1
        tally.failures.append(f"{_name(directories, seed, current)}\nended its process with {code}")
        return current + 1
    return numbers.stop


def _name(directories: Any, seed: int, number: int) -> str:
    return f"case {number} of seed {seed}: {case_of(directories, seed, number)[0]}"


def _lines(descriptor: int) -> Iterator[str]:
    """Lines as they come; TimeoutError where a case takes too long."""
    rest = b""
    while True:
        if not select.select([descriptor], [], [], CASE_TIMEOUT_S)[0]:
            raise TimeoutError
        data = os.read(descriptor, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from (line.decode() for line in lines)


def run(seed: int, numbers: range, *, limit_memory: bool, directories: Any = None) -> Tally:
    """Runs cases, some dozens to a process."""
    tally = Tally()
    directories = directories or read_directories()
    first = numbers.start
    while first < numbers.stop:
        batch = range(first, min(first + CASES_OF_A_FORK, numbers.stop))
        first = fork_cases(directories, seed, batch, tally, limit_memory=limit_memory)
    return tally


def _stretches(start: int, stop: int) -> Iterator[range]:
    for first in range(start, stop, CASES_OF_A_LINE):
        yield range(first, min(first + CASES_OF_A_LINE, stop))


def _tell(seed: int, numbers: range, directories: Any, *, limit_memory: bool) -> bool:
    """Runs cases and prints what they came to; whether nothing failed."""
    tally = run(seed, numbers, limit_memory=limit_memory, directories=directories)
    for failure in tally.failures:
        print(f"--- {failure}", flush=True)
    told = f"{tally.cases} cases, {tally.refused} refused, {len(tally.failures)} failures"
    print(f"{told}, from case {numbers.start}", flush=True)
    return not tally.failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--core", type=Path)
    arguments = parser.parse_args()
    if arguments.core is not None:
        load_core(arguments.core)
        take_arrays_into_memory()
    import tests.fuzz.partitions  # noqa: F401  # imported once, for all forks

    directories, began = read_directories(), time.monotonic()
    share = -(-arguments.cases // arguments.jobs)
    last = arguments.first + arguments.cases
    workers = []
    for start in range(arguments.first, last, share):
        pid = os.fork()
        if pid == 0:
            is_clean = True
            for numbers in _stretches(start, min(start + share, last)):
                is_clean &= _tell(arguments.seed, numbers, directories, limit_memory=arguments.core is None)
            os._exit(0 if is_clean else 1)
        workers.append(pid)
    statuses = [os.waitpid(pid, 0)[1] for pid in workers]
    print(f"{arguments.cases} cases from seed {arguments.seed} in {time.monotonic() - began:.0f} s")
    return 1 if any(statuses) else 0


if __name__ == "__main__":
    sys.exit(main())
