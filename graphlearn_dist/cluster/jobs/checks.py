"""What has to be there before anything of a job is started: what each host is asked, and what its answers mean."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ...errors import InvalidArgumentError
from .plan import JobPlacement, LaunchPlan
from .probe import Answer, Question, is_loopback, look

_INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"


def questions(plan: LaunchPlan, placement: JobPlacement, ports: Sequence[int] = ()) -> dict[str, Question]:
    """What to ask each host of a job.

    Args:
        plan: the job.
        placement: its processes' hosts.
        ports: that have to be free on the first host.
    """
    hosts = list(dict.fromkeys([*placement.server_hosts, *placement.trainer_hosts]))
    asked = {}
    for host in hosts:
        files = [plan.script] if host in placement.trainer_hosts and not plan.is_module else []
        if plan.server_script is not None and host in placement.server_hosts:
            files.append(plan.server_script)
        serves = plan.server_script is None and host in placement.server_hosts
        asked[host] = Question(
            files,
            os.path.abspath(str(plan.data)) if serves else None,
            ports if host == hosts[0] else (),
            [network_name(other) for other in hosts],
        )
    return asked


def check_local(plan: LaunchPlan) -> None:
    """As ``check``, for a job on this machine."""
    placement = plan.placement()
    check(plan, placement, {host: look(question) for host, question in questions(plan, placement).items()})


def check(plan: LaunchPlan, placement: JobPlacement, answers: Mapping[str, Answer]) -> None:
    """Compares what hosts have with what the job needs.

    Raises:
        InvalidArgumentError: something is missing; one line for each thing.
    """
    missing = [line for host, answer in answers.items() for line in _missing(plan, host, answer)]
    if plan.server_script is None:
        missing += _missing_parts(plan, placement, answers)
    if missing:
        raise InvalidArgumentError("\n".join(dict.fromkeys(missing)))


def _missing(plan: LaunchPlan, host: str, answer: Answer) -> list[str]:
    where = _on(plan, host)
    named = {plan.script: "script", plan.server_script: "server_script"}
    files = [f"{named[path]}: expected a file{where}, got {path!r}: there is none" for path in answer.missing_files]
    for port in answer.taken_ports:
        what = "the registry" if port == plan.registry_port else "torch, next to the registry's"
        files.append(f"port: {port}{where}, for {what}, is taken; choose another one with --port")
    return files


def _missing_parts(plan: LaunchPlan, placement: JobPlacement, answers: Mapping[str, Answer]) -> list[str]:
    data = os.path.abspath(str(plan.data))
    found: list[str] = []
    for host in dict.fromkeys(placement.server_hosts):
        num_parts = answers[host].num_parts
        if num_parts < 0:
            found.append(f"data: expected a partition directory{_on(plan, host)}, got {data}: it has no META.json")
        elif num_parts != plan.num_servers:
            found.append(
                f"num_servers: expected {num_parts}, one for each partition of {data}, got --servers {plan.num_servers}"
            )
    if found:
        return found
    for rank, host in enumerate(placement.server_hosts):
        if rank not in answers[host].parts:
            has = ", ".join(f"part{part}" for part in answers[host].parts) or "no partition"
            found.append(f"data: server {rank}{_on(plan, host)} needs part{rank} of {data}; it has {has}")
    return found


def _on(plan: LaunchPlan, host: str) -> str:
    return "" if plan.backend == "local" else f" on {host}"


def network_name(host: str) -> str:
    """A host's name without the user that ssh logs in as."""
    return host.rpartition("@")[2]


def master_address(hosts: Sequence[str], answers: Mapping[str, Answer]) -> str:
    """Where the first host is reached from all.

    Its name may lead to its loopback on itself, as Debian has it, or be one that only ssh knows.

    Args:
        hosts: the hosts of a job.
        answers: of all of them.
    """
    name = network_name(hosts[0])
    others = [answers[host].addresses.get(name, "") for host in hosts if host != hosts[0]]
    if others and all(address and not is_loopback(address) for address in others):
        return others[0]
    if not others and answers[hosts[0]].addresses.get(name):
        return name
    reached = answers[hosts[0]].ssh_address
    return reached if reached and not (others and is_loopback(reached)) else name


def network_environ(host: str, hosts: Sequence[str], answers: Mapping[str, Answer]) -> dict[str, str]:
    """Which network interface torch's gloo has to use on a host to be reached from the others.

    Unless told it takes the address that the host's own name has, which may be the loopback's.
    """
    answer = answers[host]
    others = [network_name(other) for other in hosts if other != host]
    if not others:
        return {}
    leading = [answer.interfaces[name] for name in others if not is_loopback(answer.addresses.get(name, ""))]
    if not is_loopback(answer.ssh_address):
        leading.append(answer.ssh_interface)
    interface = next((name for name in leading if name), "")
    return {_INTERFACE_VARIABLE: interface} if interface else {}


def misplaced_options(plan: LaunchPlan, known: Sequence[str]) -> list[str]:
    """Options of the launcher that stand after the script, and so are the script's; a module has options of its own."""
    if plan.is_module:
        return []
    return [word for word in plan.script_args if word.partition("=")[0] in known]
