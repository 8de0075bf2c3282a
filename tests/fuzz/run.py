"""Looks for bytes that break the RPC's decoders, guided by coverage (atheris); keeps what it found worth keeping.

    python -m tests.fuzz.run --seconds 600

New inputs that reach new code come into ``tests/fuzz/corpus``, the fewest that reach all of it. An input that breaks a
rule, takes more than 10 s or more than 1 GiB of memory ends the run with an error, and is written to ``crash-…``.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-malloc_limit_mb=1024", "-max_len=49152"]


def fuzz(arguments: list[str]) -> None:
    """libFuzzer, in this process; never returns."""
    import atheris

    with atheris.instrument_imports(include=["graphlearn_dist.rpc"]):
        from tests.fuzz.targets import check
    # libFuzzer starts itself again where it merges, as a command of the shell with this for its first word.
    atheris.Setup([f"{sys.executable} -m tests.fuzz.run --", *arguments], check)
    atheris.Fuzz()


def libfuzzer(*arguments: str) -> int:
    """Its exit code, run in a process of its own."""
    return subprocess.run([sys.executable, "-m", "tests.fuzz.run", "--", *arguments], check=False).returncode


def main() -> int:
    if "--" in sys.argv:
        fuzz(sys.argv[sys.argv.index("--") + 1 :])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        found, first, fewest = (Path(folder, name) for name in ("found", "first", "fewest"))
        for path in (found, first, fewest):
            path.mkdir()
        write_first_inputs(first)
        code = libfuzzer(f"-max_total_time={seconds}", *LIMITS, str(found), str(CORPUS), str(first))
        if code == 0:
            code = libfuzzer("-merge=1", *LIMITS, str(fewest), str(CORPUS), str(first), str(found))
        if code == 0:
            shutil.rmtree(CORPUS)
            shutil.copytree(fewest, CORPUS)
        return code


def write_first_inputs(folder: Path) -> None:
    """The inputs that the code knows of, as files."""
    from tests.fuzz.targets import first_inputs

    for number, data in enumerate(first_inputs()):
        (folder / str(number)).write_bytes(data)


if __name__ == "__main__":
    sys.exit(main())
