"""Programs of a document, and a process that runs them as they are printed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Program:
    """A program in a document.

    Attributes:
        document: its file's name.
        line: where it begins there.
        text: as it is printed.
    """

    document: str
    line: int
    text: str

    @property
    def needs_ray(self) -> bool:
        """Whether it says that it runs on Ray only."""
        return self.text.startswith("# on Ray\n")

    @property
    def printed(self) -> list[str]:
        """What its comments say that it prints, line by line."""
        return re.findall(r"^ *print\(.*\)  # (.*)$", self.text, re.MULTILINE)


def document(name: str) -> str:
    """The text of a file in ``docs``."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def programs(name: str) -> list[Program]:
    """The Python programs of a file in ``docs``, in order."""
    text = document(name)
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Program(name, text.count("\n", 0, match.start()) + 1, match[1]) for match in found]


def serve() -> None:
    """Runs the files whose paths come on standard input, each as a main program, and says what each one printed."""
    out = os.fdopen(os.dup(1), "w")
    if "RAY_ADDRESS" in os.environ:
        import ray

        ray.init(logging_level="error", log_to_driver=False)  # what Ray says of its processes is not the program's
    for line in sys.stdin:
        path = Path(json.loads(line))
        print(json.dumps(run(path)), file=out, flush=True)


def run(path: Path) -> dict[str, Any]:
    """What a program printed, and the traceback with which it ended, if any."""
    environ = dict(os.environ)
    os.chdir(path.parent)
    printed = io.StringIO()
    error = ""
    try:
        with contextlib.redirect_stdout(printed):
            runpy.run_path(str(path), run_name="__main__")
    except BaseException:  # a program may end in any way: the test says so, and the next one runs
        error = traceback.format_exc()
    finally:
        os.environ.clear()
        os.environ.update(environ)
    # Ray tells a driver of workers that died, on its standard output, from a thread of its own.
    lines = [line for line in printed.getvalue().splitlines() if "(raylet)" not in line]
    return {"printed": lines, "error": error}
