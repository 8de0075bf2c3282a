"""What a build is told: which tables have nodes and edges, and what their columns mean. docs/tables.md has the keys.

The keys are those of GraphStorm's construction of graphs, as far as both have a thing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InvalidArgumentError
from ..partition.layout import EdgeKey, NodeKey
from ..typing import EdgeType, as_str, reverse_edge_type
from .extra import load_yaml

FORMATS = ("parquet", "csv", "orc", "arrow")
DROPPABLE = ("unknown_ids", "double_ids", "nulls", "nonfinite")
FLOAT_DTYPES = ("float32", "float16", "bfloat16", "float64")
FEATURE_DTYPES = (*FLOAT_DTYPES, "int8")
TASKS = ("classification", "regression")
SPLITS = ("train", "val", "test")
MAIN_FEATURE = "x"

T = TypeVar("T")


@dataclass(frozen=True)
class SourceSpec:
    """Where rows come from: files of one format, or a query.

    Attributes:
        files: paths, patterns, or addresses that fsspec knows; empty for a query.
        format: one of ``FORMATS``.
        separator: of CSV.
        types: Arrow's type names by column, for CSV, which has none of its own.
        query: SQL for DuckDB, or None.
        database: a DuckDB file that the query reads, or None.
        storage_options: what fsspec is told.
    """

    files: tuple[str, ...] = ()
    format: str = "parquet"
    separator: str = ","
    types: Mapping[str, str] = field(default_factory=dict)
    query: str | None = None
    database: str | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FeatureSpec:
    """Columns that become one array: ``name`` "x" is the features, any other an attribute. ``dtype``: as stored."""

    columns: tuple[str, ...]
    name: str = MAIN_FEATURE
    dtype: str = "float32"


@dataclass(frozen=True)
class LabelSpec:
    """What is learned of nodes, and which of them train: by share (``split_pct``) or by a column (``split_col``)."""

    column: str | None
    task: str = "classification"
    split_pct: tuple[float, float, float] | None = None
    split_column: str | None = None


@dataclass(frozen=True)
class NodeTable:
    """Nodes of one type. ``source`` None: no table; ids are ``[0, num_nodes)``, or those that edges name."""

    key: NodeKey
    source: SourceSpec | None
    id_column: str | None = None
    num_nodes: int | None = None
    time_column: str | None = None
    features: tuple[FeatureSpec, ...] = ()
    label: LabelSpec | None = None
    degree: str | None = None
    drop: frozenset[str] = frozenset()

    @property
    def label_name(self) -> str:
        """What messages call the type."""
        return "nodes" if self.key is None else f"nodes {self.key}"


@dataclass(frozen=True)
class EdgeTable:
    """Edges of one type. ``reverse``: the key of the reverse edges, its own for edges that go both ways, or None."""

    key: EdgeKey
    source: SourceSpec
    source_column: str
    target_column: str
    weight_column: str | None = None
    time_column: str | None = None
    features: tuple[FeatureSpec, ...] = ()
    has_reverse: bool = False
    reverse_key: EdgeKey = None
    self_loops: str = "keep"
    drop: frozenset[str] = frozenset()

    @property
    def label_name(self) -> str:
        """What messages call the type."""
        return "edges" if self.key is None else f"edges {' '.join(self.key)}"

    @property
    def ends(self) -> tuple[NodeKey, NodeKey]:
        """Types of sources and targets."""
        return (None, None) if self.key is None else (self.key[0], self.key[2])

    @property
    def is_symmetric(self) -> bool:
        """Whether the reverse edges are of the same type."""
        return self.has_reverse and self.reverse_key == self.key

    @property
    def keys(self) -> tuple[EdgeKey, ...]:
        """The edge types that this table makes."""
        return (self.key, self.reverse_key) if self.has_reverse and not self.is_symmetric else (self.key,)


@dataclass(frozen=True)
class TablesConfig:
    """All tables of a graph; ``root`` is where relative paths begin."""

    nodes: tuple[NodeTable, ...]
    edges: tuple[EdgeTable, ...]
    root: Path

    @classmethod
    def load(cls, config: str | os.PathLike[str] | Mapping[str, Any] | TablesConfig) -> TablesConfig:
        """From a YAML or JSON file, or what such a file holds (relative paths then begin at the working directory).

        Raises:
            InvalidArgumentError: a key is unknown, missing, or has a value that it cannot have; the message names it.
        """
        if isinstance(config, TablesConfig):
            return config
        if isinstance(config, Mapping):
            return _parse(config, Path.cwd())
        if not isinstance(config, (str, os.PathLike)):
            raise InvalidArgumentError(f"config: expected a file or a mapping, got {type(config).__name__}")
        path = Path(config)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidArgumentError(f"config: expected a YAML or JSON file, got {path}: {error}") from error
        try:
            content = json.loads(text) if path.suffix == ".json" else load_yaml(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"config: {path} is no {path.suffix[1:] or 'YAML'} file: {error}") from error
        if not isinstance(content, Mapping):
            raise InvalidArgumentError(f"config: expected keys and values in {path}, got {type(content).__name__}")
        return _parse(content, path.absolute().parent)

    def to_dict(self) -> dict[str, Any]:
        """Everything that decides what is built, in JSON's types."""
        return {"nodes": [_plain(node) for node in self.nodes], "edges": [_plain(edge) for edge in self.edges]}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(entry) for entry in value] if isinstance(value, (tuple, list)) else value


class _Keys:
    """The keys of one mapping of a config: each is taken once, with a check, and none may be left."""

    def __init__(self, where: str, content: Any) -> None:
        if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
            raise InvalidArgumentError(f"{where}: expected keys and values, got {content!r:.200}")
        self.where = where
        self._left = dict(content)
        self._taken: list[str] = []

    def take(self, key: str, kind: type[T] | tuple[type[T], ...], default: Any = None) -> Any:
        """The value of a key, of that type; ``default`` where the key is missing or null."""
        self._taken.append(key)
        value = self._left.pop(key, None)
        if value is None:
            return default
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(key, " or ".join(one.__name__ for one in kinds), value)
        return value

    def need(self, key: str, kind: Any) -> Any:
        """The same of a key that must be there."""
        value = self.take(key, kind)
        if value is None:
            raise InvalidArgumentError(f"{self.where}: expected the key {key!r}; it has {sorted(self._left)}")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """A text that is one of several."""
        value = self.take(key, str, default)
        if value not in choices:
            raise self.error(key, f"one of {', '.join(choices)}", value)
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A text or a list of such, as a tuple."""
        value = self.take(key, (str, list), [])
        values = [value] if isinstance(value, str) else value
        if not all(isinstance(text, str) and text for text in values):
            raise self.error(key, "a text or a list of texts", value)
        return tuple(values)

    def error(self, key: str, expected: str, value: Any) -> InvalidArgumentError:
        """What is raised for a value that a key cannot have."""
        return InvalidArgumentError(f"{self.where}: {key}: expected {expected}, got {value!r:.200}")

    def finish(self) -> None:
        """InvalidArgumentError where keys are left that nobody knows."""
        if self._left:
            known = ", ".join(sorted(set(self._taken)))
            raise InvalidArgumentError(f"{self.where}: unknown key {sorted(self._left)[0]!r}; expected some of {known}")


def _parse(content: Mapping[str, Any], root: Path) -> TablesConfig:
    keys = _Keys("config", content)
    keys.take("version", (str, int, float))  # GraphStorm's, which says nothing here
    given_nodes, given_edges = keys.take("nodes", list, []), keys.need("edges", list)
    keys.finish()
    edges = tuple(_edges(f"edges[{i}]", entry) for i, entry in enumerate(given_edges))
    nodes = [_nodes(f"nodes[{i}]", entry) for i, entry in enumerate(given_nodes)]
    if not edges:
        raise InvalidArgumentError("config: edges: expected at least one table")
    _check_types(nodes, edges)
    named = {node.key for node in nodes}
    for edge in edges:  # types without a table: their ids are those that edges name
        for key in edge.ends:
            if key not in named:
                nodes.append(NodeTable(key, None))
                named.add(key)
    return TablesConfig(tuple(nodes), edges, root)


def _check_types(nodes: Sequence[NodeTable], edges: Sequence[EdgeTable]) -> None:
    seen: dict[Any, Any] = {}
    for key in [*(node.key for node in nodes), *(key for edge in edges for key in (edge.keys if edge.key else ()))]:
        if key in seen:
            raise InvalidArgumentError(f"config: expected one table for each type, got two for {key!r}")
        seen[key] = key
        # Edge types by the names of their files and of their stages.
        for name in () if isinstance(key, (str, type(None))) else (("file", as_str(key)), ("stage", " ".join(key))):
            if seen.setdefault(name, key) != key:
                raise InvalidArgumentError(
                    f"config: expected other names than {seen[name]!r} and {key!r}, which are the same when joined: "
                    f"{name[1]!r}"
                )
    unnamed = [node.key is None for node in nodes] + [edge.key is None for edge in edges]
    if any(unnamed) and (not all(unnamed) or len(edges) > 1 or len(nodes) > 1):
        raise InvalidArgumentError(
            "config: expected node_type and relation in all tables, or in none of one table of nodes and one of edges "
            "(a homogeneous graph)"
        )
    ends = {key for edge in edges for key in edge.ends}
    for node in nodes:
        if node.source is None and node.num_nodes is None and node.key not in ends:
            raise InvalidArgumentError(f"config: {node.label_name}: expected files, a query or num_nodes")


def _source(keys: _Keys) -> SourceSpec | None:
    files, query = keys.texts("files"), keys.take("query", str)
    given = keys.take("format", (str, dict), {})
    options = keys.take("storage_options", dict, {})
    database = keys.take("database", str)
    if files and query:
        raise InvalidArgumentError(f"{keys.where}: expected files or query, got both")
    for key, value in (("format", given), ("storage_options", options)):
        if value and not files:
            raise keys.error(key, "none but beside files", value)
    if database and not query:
        raise keys.error("database", "none but beside query", database)
    if query:
        return SourceSpec(query=query, database=database)
    if not files:
        return None
    form = _Keys(f"{keys.where}: format", {"name": given} if isinstance(given, str) else given)
    name = form.choice("name", FORMATS, _format_of(files[0]))
    separator = form.take("separator", str, "\t" if _without_packing(files[0]).endswith(".tsv") else ",")
    types = form.take("types", dict, {})
    form.finish()
    if len(separator.encode()) != 1:
        raise form.error("separator", "one character", separator)
    if not all(isinstance(text, str) for entry in types.items() for text in entry):
        raise form.error("types", "names of columns and of Arrow's types", types)
    try:
        json.dumps(options)
    except (TypeError, ValueError) as error:
        raise keys.error("storage_options", "texts, numbers, lists and mappings", options) from error
    return SourceSpec(files, name, separator, types, storage_options=options)


def _without_packing(path: str) -> str:
    """A path without the ending of a compression."""
    return re.sub(r"\.(gz|bz2|zst|lz4)$", "", path.lower())


def _format_of(path: str) -> str:
    endings = {"csv": (".csv", ".tsv", ".txt"), "orc": (".orc",), "arrow": (".arrow", ".feather", ".ipc")}
    return next((name for name, ends in endings.items() if _without_packing(path).endswith(ends)), "parquet")


def _nodes(where: str, content: Any) -> NodeTable:
    keys = _Keys(where, content)
    source = _source(keys)
    num_nodes = keys.take("num_nodes", int)
    if num_nodes is not None and num_nodes < 0:
        raise keys.error("num_nodes", "an int >= 0", num_nodes)
    degree = keys.take("degree", (bool, str), False)
    table = NodeTable(
        key=keys.take("node_type", str),
        source=source,
        id_column=keys.take("node_id_col", str),
        num_nodes=num_nodes,
        time_column=keys.take("time_col", str),
        features=_features(keys),
        label=_label(keys),
        degree="degree" if degree is True else degree or None,
        drop=_drops(keys, ("double_ids", "nulls", "nonfinite")),
    )
    keys.finish()
    if source is None and (table.id_column or table.features or table.label or table.time_column):
        raise InvalidArgumentError(f"{where}: expected files or a query for its columns")
    if source is not None and num_nodes is not None:
        raise keys.error("num_nodes", "none beside files or a query, which have the nodes", num_nodes)
    if table.drop and table.id_column is None:
        raise keys.error("drop", "node_id_col beside it: without, the n-th row is node n", sorted(table.drop))
    if table.degree is not None and table.degree in (MAIN_FEATURE, *(spec.name for spec in table.features)):
        raise keys.error("degree", "a name that no feature has", table.degree)
    return table


def _edges(where: str, content: Any) -> EdgeTable:
    keys = _Keys(where, content)
    source = _source(keys)
    if source is None:
        raise InvalidArgumentError(f"{where}: expected files or a query")
    key = _relation(keys)
    reverse = keys.take("reverse", (bool, str), False)
    table = EdgeTable(
        key=key,
        source=source,
        source_column=keys.need("source_id_col", str),
        target_column=keys.need("dest_id_col", str),
        weight_column=keys.take("weight_col", str),
        time_column=keys.take("time_col", str),
        features=_features(keys),
        has_reverse=bool(reverse),
        reverse_key=_reverse_key(key, reverse),
        self_loops=keys.choice("self_loops", ("keep", "add", "remove"), "keep"),
        drop=_drops(keys, ("unknown_ids", "nulls", "nonfinite")),
    )
    keys.finish()
    if table.source_column == table.target_column:
        raise keys.error("dest_id_col", "another column than source_id_col", table.target_column)
    if table.self_loops != "keep" and table.ends[0] != table.ends[1]:
        raise keys.error("self_loops", "keep where sources and targets are of two types", table.self_loops)
    if table.self_loops == "add" and (table.time_column or table.features):
        raise keys.error("self_loops", "keep or remove where edges have times or features, which loops lack", "add")
    return table


def _relation(keys: _Keys) -> EdgeKey:
    relation = keys.take("relation", (list, tuple))
    if relation is None:
        return None
    if len(relation) != 3 or not all(isinstance(part, str) and part for part in relation):
        raise keys.error("relation", "[source type, relation, target type]", relation)
    return (relation[0], relation[1], relation[2])


def _reverse_key(key: EdgeKey, reverse: bool | str) -> EdgeKey:
    if key is None or not reverse:
        return None
    if isinstance(reverse, str):
        return (key[2], reverse, key[0])
    made: EdgeType = reverse_edge_type(key)
    return made


def _features(keys: _Keys) -> tuple[FeatureSpec, ...]:
    specs = []
    for i, content in enumerate(keys.take("features", list, [])):
        own = _Keys(f"{keys.where}: features[{i}]", content)
        columns = own.texts("feature_col")
        if not columns:
            raise own.error("feature_col", "a column or a list of columns", None)
        name = own.take("feature_name", str, MAIN_FEATURE)
        if own.take("transform", (dict, str)) is not None:
            raise own.error("transform", "none (SQL can compute columns: query)", content["transform"])
        spec = FeatureSpec(columns, name, own.choice("out_dtype", FEATURE_DTYPES, "float32"))
        own.finish()
        specs.append(spec)
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        raise keys.error("features", "one entry for each feature_name (feature_col takes several columns)", names)
    return tuple(specs)


def _label(keys: _Keys) -> LabelSpec | None:
    given = keys.take("labels", (list, dict), [])
    entries = [given] if isinstance(given, Mapping) else given
    if not entries:
        return None
    if len(entries) > 1:
        raise keys.error("labels", "one entry", entries)
    own = _Keys(f"{keys.where}: labels", entries[0])
    pct = own.take("split_pct", list)
    spec = LabelSpec(
        own.take("label_col", str), own.choice("task_type", TASKS, TASKS[0]), None, own.take("split_col", str)
    )
    own.finish()
    if pct is not None:
        if len(pct) != 3 or not all(type(p) in (int, float) and p >= 0 for p in pct) or sum(pct) > 1 + 1e-9:
            raise own.error("split_pct", "three shares of train, val and test, together at most 1", pct)
        if spec.split_column is not None:
            raise own.error("split_pct", "no split_col beside it", pct)
        spec = dataclasses.replace(spec, split_pct=(float(pct[0]), float(pct[1]), float(pct[2])))
    return spec


def _drops(keys: _Keys, allowed: Sequence[str]) -> frozenset[str]:
    given = keys.texts("drop")
    for name in given:
        if name not in allowed:
            raise keys.error("drop", f"some of {', '.join(allowed)}", name)
    return frozenset(given)
