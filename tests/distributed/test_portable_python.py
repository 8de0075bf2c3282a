"""A job under an interpreter that was built for an older system than it runs on, as conda's and portable ones are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0  # only ever reached by a hang

# Takes away what such interpreters lack, in every process of the job.
SITE_CUSTOMIZE = """
import fcntl, os, signal
for module, starts in ((os, ("memfd_create", "MFD_", "pidfd_open", "PIDFD_", "P_PIDFD", "eventfd", "EFD_")),
                       (signal, ("pidfd_send_signal",)), (fcntl, ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_"))):
    for name in [name for name in vars(module) if name.startswith(starts)]:
        delattr(module, name)
"""

PROGRAM = """
import os
import torch
import graphlearn_dist as glt
from graphlearn_dist.distributed import DistNeighborLoader, MpDistSamplingWorkerOptions
from graphlearn_dist.partition import RandomPartitioner

assert not hasattr(os, "memfd_create") and not hasattr(os, "pidfd_open")
if __name__ == "__main__":
    draw = torch.Generator().manual_seed(1)
    edges = torch.randint(0, 100, (2, 900), generator=draw)
    x = torch.randn(100, 200, generator=draw)
    RandomPartitioner("graph", 1, 100, edges, node_feat=x, edge_assign_strategy="by_dst").partition()
    data = glt.distributed.DistDataset(edge_dir="in")
    data.load("graph", 0)
    options = MpDistSamplingWorkerOptions(num_workers=1, rpc_timeout=60)
    settings = dict(batch_size=10, shuffle=True, edge_dir="in", collect_features=True)
    loader = DistNeighborLoader(data, [3, 2], torch.arange(100), worker_options=options, **settings)
    batches = list(loader)
    assert [batch.x.shape[1] for batch in batches] == [200] * 10
    assert sorted(torch.cat([batch.n_id[:10] for batch in batches]).tolist()) == list(range(100))
    assert all(torch.equal(batch.x, x[batch.n_id]) for batch in batches)
    loader.shutdown()
    print("ten batches")
"""


def test_sampling_in_subprocesses(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "ten batches"), done.stderr
