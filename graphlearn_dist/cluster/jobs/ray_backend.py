"""A job on Ray: each process at the end of an actor, on a machine that Ray knows."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...errors import GraphLearnError, InvalidArgumentError, LaunchError, WorkerLateError, WorkerNameTakenError
from ...rpc import Endpoint
from ..actors.base import Actor, ActorBackend, ActorSpec, NodeResources, order_nodes
from ..actors.choose import require_ray
from ..actors.environ import forwarded_environ
from .backend import Backend, Listener, RunningProcess, make_token
from .job_placement import place_servers, place_trainers
from .plan import JobPlacement, LaunchPlan, Master, ProcessSpec
from .process_host import MachineReport, ProcessHost

_START_TIMEOUT_S = 120.0
_FAILED, _KILLED = 1, 137
_HOST = f"{ProcessHost.__module__}.{ProcessHost.__qualname__}"


class RayLaunchBackend(Backend):
    """Processes on the machines of a Ray cluster, one actor for each; they end with the launcher.

    Python, the package and the working directory must be at the same paths on every machine, and the launcher on one
    of them. The registry runs in the launcher, so that no other machine's loss takes it away. A server runs where the
    directory of its partition is; one that is lost with its machine is started on another that has it.

    Raises:
        LaunchError: Ray is not installed.
    """

    notices_loss_s = 2 * _START_TIMEOUT_S

    def __init__(self) -> None:
        try:
            require_ray()
        except ImportError as error:
            raise LaunchError(str(error)) from error
        self.token = make_token()
        self._job: _RayJob | None = None

    @contextlib.contextmanager
    def master(self, plan: LaunchPlan) -> Iterator[Master]:
        """The registry, in this process, and a port for torch on the machine of trainer 0."""
        from ..actors.ray_engine import connected

        with contextlib.ExitStack() as stack:
            try:
                engine = stack.enter_context(connected(log_to_driver=False))
            except ConnectionError as error:
                raise LaunchError(f"cannot connect to Ray: {error}") from error
            address = engine.address()
            endpoint = stack.enter_context(Endpoint("launcher", 0, token=self.token, listen_host=address))
            self._job = _RayJob(plan, engine, self.token)
            torch_address, torch_port = self._job.torch_address()
            port = endpoint.host_registry().port
            yield Master(address, port, torch_port, torch_address=torch_address, has_registry=True)

    def place(self, plan: LaunchPlan) -> JobPlacement:
        return self._running_job().placement

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        return self._running_job().start(spec, listener)

    def _running_job(self) -> _RayJob:
        if self._job is None:
            raise InvalidArgumentError("master: expected its scope to be entered first")
        return self._job


class _RayJob:
    """What is known of one job's machines."""

    def __init__(self, plan: LaunchPlan, engine: ActorBackend, token: bytes) -> None:
        self._plan = plan
        self._engine = engine
        self._token = token
        self._environ = forwarded_environ()
        if "PYTHONPATH" in os.environ:  # as over ssh
            self._environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
        nodes = order_nodes(engine.nodes())
        self._reports = self._look(nodes)
        self._hosts: dict[str, str] = {}  # of processes that were started, by name
        servers = place_servers(plan.num_servers, {host: one.partitions for host, one in self._reports.items()})
        self.placement = JobPlacement(servers, place_trainers(plan.num_trainers, nodes, plan.trainer_gpus, servers))

    def torch_address(self) -> tuple[str, int]:
        """Where trainer 0 may listen."""
        report = self._reports[self.placement.trainer_hosts[0]]
        return report.address, report.free_port

    def start(self, spec: ProcessSpec, listener: Listener) -> RunningProcess:
        """Starts a process on its machine, or on another one where that is gone."""
        spec = replace(spec, host=self._host_for(spec))
        self._hosts[spec.name] = spec.host
        gpus = self._plan.trainer_gpus if spec.role == "trainer" else 0.0
        try:
            actor = self._engine.create_when_free(self._actor(f"{spec.role}-{spec.rank}", spec.host, gpus))
        except WorkerNameTakenError as error:
            raise LaunchError(f"cannot start {spec.name}: {error}") from error
        return _ActorProcess(spec, actor, self._engine, listener, (self._environ, self._token))

    def _actor(self, what: str, node_id: str, gpus: float = 0.0) -> ActorSpec:
        """A host of one process, under a name that says to which job it belongs and what it is."""
        name = f"{Path(self._plan.script).stem}-{what}"
        # One thread runs the process, another stops it.
        options = {"max_concurrency": 2}
        return ActorSpec(
            name,
            _HOST,
            (os.getcwd(),),
            node_id=node_id,
            num_gpus=gpus,
            options=options,
            start_timeout_s=_START_TIMEOUT_S,
        )

    def _host_for(self, spec: ProcessSpec) -> str:
        nodes = order_nodes(self._engine.nodes())
        if spec.host in {node.node_id for node in nodes}:
            return spec.host
        self._reports |= self._look([node for node in nodes if node.node_id not in self._reports])
        load = Counter(host for name, host in self._hosts.items() if name != spec.name)
        able = [node.node_id for node in nodes if spec.rank in self._reports[node.node_id].partitions]
        if spec.role != "server" or not able:
            raise LaunchError(f"{spec.name}: its machine {spec.host[:12]} is lost, and no other one has its data")
        return min(able, key=lambda host: load[host])

    def _look(self, nodes: Sequence[NodeResources]) -> dict[str, MachineReport]:
        """Asks the machines what they have, all at the same time."""
        engine, plan = self._engine, self._plan
        data = None if plan.data is None else os.path.abspath(plan.data)
        actors = [engine.create(self._actor(f"look-{node.node_id[:8]}", node.node_id)) for node in nodes]
        try:
            asked = zip(actors, nodes, strict=True)
            answers = [actor.call("look", node.address, data, plan.num_servers) for actor, node in asked]
            reports = engine.get(answers, _START_TIMEOUT_S)
        except Exception as error:  # whatever the engine raises where a machine has no room, or no package
            raise LaunchError(
                f"the machines {[node.node_id[:12] for node in nodes]} cannot be used: {error}"
            ) from error
        finally:
            for actor in actors:
                engine.kill(actor)
        return {node.node_id: report for node, report in zip(nodes, reports, strict=True)}


class _ActorProcess(RunningProcess):
    """A process at the end of an actor; ``inherited`` are the launcher's environment and the job's token."""

    def __init__(
        self,
        spec: ProcessSpec,
        actor: Actor,
        engine: ActorBackend,
        listener: Listener,
        inherited: tuple[Mapping[str, str], bytes],
    ) -> None:
        self._spec = spec
        self._actor = actor
        self._engine = engine
        self._inherited = inherited
        threading.Thread(target=self._follow, args=(listener,), name=f"follow {spec.name}", daemon=True).start()

    def _follow(self, listener: Listener) -> None:
        code = _FAILED
        try:
            self._actor.ready.result()
            code = self._run(listener)
        except WorkerLateError as error:
            listener.on_line(self._spec, f"{self._spec.name} was not started: {error}; there may be too little free")
        except Exception as error:  # whatever kept the engine from starting it, or ended its actor
            listener.on_line(self._spec, str(error))
            code = _KILLED if self._engine.is_lost(error) else _FAILED
        finally:
            self._end()
            listener.on_exit(self._spec, code)

    def _end(self) -> None:
        """Returns when the actor is gone, or the machine is known to be lost, which takes a while to be noticed."""
        with contextlib.suppress(GraphLearnError):
            self._engine.kill(self._actor)
        concurrent.futures.wait([self._actor.ended], _START_TIMEOUT_S)

    def _run(self, listener: Listener) -> int:
        """From the process's start to its end; its exit code."""
        for ref in self._actor.stream("run", self._spec, *self._inherited):
            [batch] = self._engine.get([ref])
            for event in batch:
                if isinstance(event, int):
                    return event
                listener.on_line(self._spec, event)
        raise LaunchError(f"{self._spec.name}: its actor gave no exit code")

    def stop(self) -> None:
        self._ask("stop")

    def kill(self) -> None:
        self._ask("kill")

    def tell(self, line: str) -> None:
        self._ask("tell", line)

    def _ask(self, method: str, *args: str) -> None:
        if self._actor.ready.done():
            self._actor.call(method, *args)  # nobody waits for the answer: the end of the process is one
        else:
            with contextlib.suppress(GraphLearnError):  # a lost machine; who follows the process tells of its end
                self._engine.kill(self._actor)
