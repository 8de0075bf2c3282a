"""The hosts of a Slurm allocation, from the variable in which Slurm names them."""

from __future__ import annotations

import itertools
import re

from ...config import slurm_nodelist, slurm_step_tasks
from ...errors import InvalidArgumentError
from .plan import Host

_PART = re.compile(r"(?P<text>[^,\s\[\]]+)|\[(?P<ranges>[^\[\]]*)\]|(?P<end>[,\s]+)|(?P<wrong>.)")
_RANGE = re.compile(r"(?P<low>\d+)(?:-(?P<high>\d+))?")
_MOST_HOSTS = 65536  # of one list: a slip such as [1-99999999999] is an error, not a full memory


def slurm_hosts() -> list[Host]:
    """The hosts of the allocation that this process is in, in Slurm's order; none outside of one.

    Each stands once: ``--ntasks-per-node`` and the like say nothing about servers and trainers.

    Raises:
        InvalidArgumentError: ``SLURM_JOB_NODELIST`` is not of Slurm's form, or ``srun`` started several of these.
    """
    nodelist = slurm_nodelist()
    if nodelist is None:
        return []
    if (num_tasks := slurm_step_tasks()) > 1:  # each of them would start the whole job
        raise InvalidArgumentError(
            f"launch: expected to be started once, srun starts it {num_tasks} times (SLURM_STEP_NUM_TASKS): "
            "use srun --nodes=1 --ntasks=1, or call it in the batch script without srun"
        )
    return [Host(name) for name in dict.fromkeys(expand_nodelist(nodelist))]


def expand_nodelist(nodelist: str) -> list[str]:
    """The names in a list such as ``"login1,rack[1-2]n[08-11,20]"``, as ``scontrol show hostnames`` prints them.

    The last bracket of a name runs fastest (``scontrol`` has an order of its own where there are three), numbers keep
    their zeros, and names stand between commas or blanks, any number of them.

    Raises:
        InvalidArgumentError: brackets do not match, a range is none, or there is no name.
    """
    names: list[str] = []
    choices: list[list[str]] = []  # what may stand at each place of the current name
    for part in _PART.finditer(f"{nodelist},"):
        if part["wrong"]:
            raise _malformed(nodelist, f"unexpected {part['wrong']!r} at character {part.start() + 1}")
        if part["text"]:
            choices.append([part["text"]])
        elif part["ranges"] is not None:
            choices.append([number for each in part["ranges"].split(",") for number in _numbers(each, nodelist)])
        elif choices:
            names += ("".join(name) for name in itertools.islice(itertools.product(*choices), _MOST_HOSTS + 1))
            choices = []
        if len(names) > _MOST_HOSTS:
            raise _malformed(nodelist, f"more than {_MOST_HOSTS} hosts")
    if not names:
        raise _malformed(nodelist, "it has no name")
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
