"""Graphs from tables (Parquet, CSV, ORC, Arrow, SQL) to partition directories, out of core.

Needs the extra ``tables``: ``pip install 'graphlearn_dist[tables]'``. docs/tables.md has the config, docs/scale.md says
how much memory and disk a graph takes.
"""

from .extra import missing

try:
    import pyarrow as _pyarrow  # noqa: F401
except ImportError as error:
    raise missing("pyarrow", error) from error

from ..utils.progress import StageProgress
from .build import build
from .config import TablesConfig
from .ids import IdMap

__all__ = ["IdMap", "StageProgress", "TablesConfig", "build"]
