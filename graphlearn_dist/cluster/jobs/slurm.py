"""The hosts of a Slurm allocation, from the variable in which Slurm names them."""

from __future__ import annotations

import itertools
import re

from ...config import slurm_nodelist
from ...errors import InvalidArgumentError
from .plan import Host

_PART = re.compile(r"(?P<text>[^,\[\]]+)|\[(?P<ranges>[^\[\]]*)\]|(?P<comma>,)|(?P<wrong>.)")
_RANGE = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+))?")
_MOST_HOSTS = 65536  # of one list: a slip such as [1-99999999999] is an error, not a full memory


def slurm_hosts() -> list[Host]:
    """The hosts of the allocation that this process is in, in Slurm's order; none outside of one.

    Each stands once: ``--ntasks-per-node`` and the like say nothing about servers and trainers.

    Raises:
        InvalidArgumentError: ``SLURM_JOB_NODELIST`` is not of Slurm's form.
    """
    nodelist = slurm_nodelist()
    return [] if nodelist is None else [Host(name) for name in expand_nodelist(nodelist)]


def expand_nodelist(nodelist: str) -> list[str]:
    """The names in a list such as ``"login1,rack[1-2]n[08-11,20]"``, as ``scontrol show hostnames`` prints them.

    The last bracket of a name runs fastest, and numbers keep their zeros.

    Raises:
        InvalidArgumentError: brackets do not match, a range is none, or a name is empty.
    """
    names: list[str] = []
    choices: list[list[str]] = []  # what may stand at each place of the current name
    for part in _PART.finditer(f"{nodelist.strip()},"):
        if part["wrong"]:
            raise _malformed(nodelist, f"unexpected {part['wrong']!r} at character {part.start() + 1}")
        if part["text"]:
            choices.append([part["text"]])
        elif part["ranges"] is not None:
            choices.append([number for each in part["ranges"].split(",") for number in _numbers(each, nodelist)])
        elif not choices:
            raise _malformed(nodelist, f"an empty name at character {part.start() + 1}")
        else:
            names += ("".join(name) for name in itertools.islice(itertools.product(*choices), _MOST_HOSTS + 1))
            choices = []
        if len(names) > _MOST_HOSTS:
            raise _malformed(nodelist, f"more than {_MOST_HOSTS} hosts")
    return names


def _numbers(text: str, nodelist: str) -> list[str]:
    found = _RANGE.fullmatch(text)
    low, high = (found["low"], found["high"] or found["low"]) if found else ("1", "0")
    if not 0 <= int(high) - int(low) < _MOST_HOSTS:
        raise _malformed(nodelist, f"{text!r} is no range")
    return [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]


def _malformed(nodelist: str, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"environment variable SLURM_JOB_NODELIST: expected names such as 'n1,n[08-11]', got {nodelist!r}: {why}"
    )
