"""What a process counts while it works: batches and where their time goes, requests, bytes, memory.

Counting is always on. ``loader.stats()`` tells of one loader, ``start_metrics_server`` shows all of a process in
Prometheus's format.
"""

from .batch_counts import BatchCounts, BatchSums
from .exporter import MetricsServer, start_metrics_server
from .loader_stats import DeviceCacheCounts, LoaderStats, MadeStats
from .samples import Metric, collect, register_source

__all__ = [
    "BatchCounts",
    "BatchSums",
    "DeviceCacheCounts",
    "LoaderStats",
    "MadeStats",
    "Metric",
    "MetricsServer",
    "collect",
    "register_source",
    "start_metrics_server",
]
