"""Says what a host has for a job, before anything of the job is started there.

Started by file name on the host, before everything else of the package: imports the standard library only.

    python probe.py QUESTION

``QUESTION`` is a ``Question`` as JSON; the answer is one line on standard output, ``ANSWER_BEGINS`` and an ``Answer``
as JSON, since a login shell may write lines of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

ANSWER_BEGINS = "graphlearn-dist host "
_SIOCGIFADDR = 0x8915
_ANY_PORT = 9  # nothing is sent there


@dataclass(frozen=True)
class Question:
    """What to look for.

    Attributes:
        files: that processes will read.
        data: a partition directory, or None.
        ports: that have to be free.
        hosts: the other hosts of the job.
    """

    files: Sequence[str] = ()
    data: str | None = None
    ports: Sequence[int] = ()
    hosts: Sequence[str] = ()


@dataclass(frozen=True)
class Answer:
    """What a host has.

    Attributes:
        missing_files: of those asked for.
        num_parts: partitions that the data set has altogether; -1 where there is no description of it.
        parts: those of them that are here.
        taken_ports: of those asked for.
        addresses: of the other hosts, as this one finds them by their names; "" for what is no name here.
        interfaces: the network interfaces that lead to them, "" where none is known.
        ssh_address: the address of this host that ssh has reached, or "".
        ssh_interface: the network interface that has it, or "".
    """

    missing_files: Sequence[str] = ()
    num_parts: int = -1
    parts: Sequence[int] = ()
    taken_ports: Sequence[int] = ()
    addresses: dict[str, str] = field(default_factory=dict)
    interfaces: dict[str, str] = field(default_factory=dict)
    ssh_address: str = ""
    ssh_interface: str = ""


def look(question: Question) -> Answer:
    """What this host has."""
    num_parts, parts = _partitions(question.data) if question.data is not None else (-1, [])
    addresses = {name: resolve(name) for name in question.hosts}
    # "client address, its port, server address, its port"; sshd sets it
    connection = os.environ.get("SSH_CONNECTION", "").split()
    ssh_address = connection[2] if len(connection) == 4 else ""
    return Answer(
        [path for path in question.files if not os.path.isfile(path)],
        num_parts,
        parts,
        [port for port in question.ports if not _is_free(port)],
        addresses,
        {name: _interface_towards(address) for name, address in addresses.items()},
        ssh_address,
        _interface_of(ssh_address),
    )


def _partitions(directory: str) -> tuple[int, list[int]]:
    try:
        with open(os.path.join(directory, "META.json")) as file:
            num_parts = int(json.load(file)["num_parts"])
    except (OSError, ValueError, KeyError, TypeError):
        num_parts = -1
    parts: list[int] = []
    with contextlib.suppress(OSError):
        names = [name[4:] for name in os.listdir(directory) if name.startswith("part")]
        parts = sorted(int(name) for name in names if name.isdecimal())
    return num_parts, parts


def _is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("", port))
            sock.listen()
        except OSError:
            return False
        return True


def resolve(name: str) -> str:
    """The address of a host, or "" where its name is none here."""
    try:
        return str(socket.getaddrinfo(name, _ANY_PORT, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return ""


def is_loopback(address: str) -> bool:
    """Whether an address leads nowhere but to the host itself; "" does not lead anywhere."""
    return bool(address) and ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _interface_towards(address: str) -> str:
    """The interface that packets to an address leave by."""
    if not address:
        return ""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address, _ANY_PORT))
        except OSError:  # no way there
            return ""
        return _interface_of(sock.getsockname()[0])


def _interface_of(address: str) -> str:
    """The interface that has an address of this host."""
    for _, name in socket.if_nameindex():
        if address in _addresses_of(name):
            return name
    return ""


def _addresses_of(interface: str) -> list[str]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):  # it has none
        request = struct.pack("256s", interface.encode()[:15])
        found.append(socket.inet_ntoa(fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)[20:24]))
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for line in file:
            digits, *_, name = line.split()
            if name == interface:
                found.append(str(ipaddress.IPv6Address(int(digits, 16))))
    return found


def main(argv: Sequence[str]) -> int:
    """Prints the answer."""
    print(ANSWER_BEGINS + json.dumps(asdict(look(Question(**json.loads(argv[0]))))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
