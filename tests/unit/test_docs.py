"""What the documents quote for others to run is well-formed in its language."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])

SOURCES = ("graphlearn_dist", "csrc", "tests", "benchmarks", "examples", "release")


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_quoted_programs_are_well_formed(path: Path) -> None:
    for code in blocks(path, "python"):
        compile(code, str(path), "exec", flags=0)
    for script in blocks(path, "bash"):
        checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("path", [*DOCUMENTS, ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_files_that_are_named_are_there(path: Path) -> None:
    """From the root, or within the package."""
    files = [str(file.relative_to(ROOT)) for top in SOURCES for file in (ROOT / top).rglob("*.*")]
    named = re.findall(r"`((?:[\w*]+/)+[\w*]+\.(?:py|h|cpp|cu))`", path.read_text())
    places = {name: (name, f"graphlearn_dist/{name}") for name in named}
    lost = [name for name in named if not any(fnmatch.fnmatch(file, at) for file in files for at in places[name])]
    assert lost == []


def test_the_manifest_for_kuberay_describes_one_job() -> None:
    yaml = pytest.importorskip("yaml")
    [text] = blocks(ROOT / "docs/ray.md", "yaml")
    job = yaml.safe_load(text)
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    [workers] = cluster["workerGroupSpecs"]
    assert set(workers) == {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
    assert all(isinstance(value, str) for value in cluster["headGroupSpec"]["rayStartParams"].values())
    pod = workers["template"]["spec"]
    assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {
        each["name"] for each in pod["volumes"]
    }
    words = job["spec"]["entrypoint"].split()
    assert words[:4] == ["graphlearn-dist", "launch", "--on", "ray"]
    assert workers["replicas"] == int(words[words.index("--servers") + 1])
