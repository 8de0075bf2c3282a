"""The libraries of the extra ``tables`` that not every build uses: they are imported where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError, MissingLibraryError


def missing(name: str, error: ImportError) -> MissingLibraryError:
    """What is raised where a library of the extra is not installed."""
    return MissingLibraryError(f"{name} cannot be imported ({error}): pip install 'graphlearn_dist[tables]'")


def load_yaml(text: str) -> Any:
    """What a YAML text holds: numbers, texts, lists and mappings alone. ValueError where it is none."""
    try:
        import yaml
    except ImportError as error:
        raise missing("yaml", error) from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def open_duckdb(memory_bytes: int, spill: Path, threads: int, database: str | None = None) -> Any:
    """A connection that keeps to this memory, and spills to a folder."""
    try:
        import duckdb
    except ImportError as error:
        raise missing("duckdb", error) from error
    connection = duckdb.connect(database, read_only=True) if database else duckdb.connect()
    connection.execute(f"SET memory_limit='{memory_bytes}B'")
    connection.execute(f"SET threads={threads}")
    connection.execute("SET temp_directory=" + quoted(str(spill)))
    return connection


def quoted(text: str) -> str:
    """A text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


def file_system(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """fsspec's file system of an address, and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise missing("fsspec", error) from error
    try:
        system, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise MissingLibraryError(f"{url}: {error}") from error
    except (ValueError, TypeError, OSError) as error:
        raise InvalidArgumentError(f"files: {url}: {error}") from error
    return system, path
