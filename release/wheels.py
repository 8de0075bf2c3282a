"""Builds manylinux wheels for the CPython versions that this machine has: `make wheels`.

A source distribution is made first and every wheel is built from it, so that what is published is what was tried, and
nothing of a working tree gets in. auditwheel gives each wheel the lowest manylinux tag that its symbols allow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.10", "3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """A CPython of this version: the running one, of PATH, or of pyenv; None where there is none."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python3"), reverse=True)]
    return next((str(python) for python in candidates if python and _runs(str(python), version)), None)


def _runs(python: str, version: str) -> bool:
    # pyenv has a stand-in for each version on PATH, which fails for those that are not chosen.
    asked = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and answer.stdout.strip() == version


def source_distribution(work: Path, out: Path) -> Path:
    """Makes the source distribution in `out`, and unpacks it; returns its folder."""
    (work / "sdist").mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "build", "--sdist", "--outdir", str(work / "sdist"), str(ROOT)])
    [archive] = (work / "sdist").iterdir()
    with tarfile.open(archive) as files:
        files.extractall(work, filter="data")
    shutil.copy(archive, out)
    return work / archive.name.removesuffix(".tar.gz")


def build(python: str, source: Path, raw: Path, out: Path) -> Path:
    """The wheel of one interpreter, repaired, in `out`."""
    raw.mkdir()
    _run([python, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", str(raw), str(source)])
    [wheel] = raw.iterdir()
    repaired = raw / "repaired"
    _run([sys.executable, "-m", "auditwheel", "repair", "-w", str(repaired), str(wheel)])
    [done] = repaired.iterdir()
    check(done)
    return Path(shutil.move(done, out / done.name))


def check(wheel: Path) -> None:
    """Refuses a wheel that is not manylinux, or carries libraries of others (torch's among them), tests or sources."""
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    tops = {name.split("/")[0] for name in names} - {"graphlearn_dist"}
    libraries = [name for name in names if ".so" in name and not name.startswith("graphlearn_dist/_C.")]
    if "manylinux" not in wheel.name or libraries or any(not top.endswith(".dist-info") for top in tops):
        raise SystemExit(f"{wheel.name}: expected a manylinux wheel with one library, got {sorted(tops)}, {libraries}")


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheels go (default dist)")
    parser.add_argument("--versions", nargs="*", default=VERSIONS, metavar="3.X", help="default: 3.10 to 3.13")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    work = ROOT / "build" / "wheels"
    shutil.rmtree(work, ignore_errors=True)
    source = source_distribution(work, args.out)
    built = 0
    for version in args.versions:
        python = interpreter(version)
        if python is None:
            print(f"CPython {version}: not on this machine, skipped", flush=True)
            continue
        wheel = build(python, source, work / f"raw-{version}", args.out)
        print(f"CPython {version}: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        built += 1
    if built == 0:
        raise SystemExit(f"expected one of CPython {', '.join(args.versions)} here, found none")


if __name__ == "__main__":
    main()
