"""A worker's class in Ray's wrapping, which says how its workers are to be started."""

from __future__ import annotations

from typing import Any

import ray

from tests.support.cluster_workers import Worker

SAID = {"env_vars": dict.fromkeys(["GLD_TEST_A", "GLD_TEST_B", "GLD_TEST_C", "GLD_TEST_D"], "decorator")}


@ray.remote(num_cpus=0, max_restarts=3, runtime_env=SAID)
class Decorated(Worker):
    """Wants a rank and an argument of its own."""

    @staticmethod
    def configure_worker(num_gpus: float, bundle_indices: Any) -> Any:
        return {}, {"GLD_TEST_D": "configured", "RANK": f"{bundle_indices} {num_gpus:g}"}, {"path": "configured"}

    def said(self) -> str:
        return self.path
