"""From tables to a partition directory, out of core. docs/tables.md says what a config has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from ..core import available_cores
from ..errors import InvalidArgumentError, StorageError, TableError
from ..partition.attributes import attr_path
from ..partition.layout import META_FILE, AnyBook, EdgeKey, NodeKey, array_path
from ..partition.meta_entries import make_meta, node_entry, write_meta
from ..partition.ordering.find_order import ORDERERS, check_installed, shape_of
from ..partition.ordering.repartition import repartition
from ..partition.ordering.zone_graph import check_num_parts
from ..partition.partition_book import RangePartitionBook
from ..partition.partitioner import random_book
from ..partition.sources import Kind
from ..partition.storage import ArrayFile, ArrayWriter, checksum_of, new_directory, put_in_place
from ..utils.paths import to_path
from ..utils.progress import Progress, Report
from ..utils.system.directory_lock import locked_directory
from ..utils.system.disk import disk_errors
from ..utils.units import parse_size
from .buckets import Budget
from .columns import CheckedChunk, id_kind
from .config import EdgeTable, NodeTable, SourceSpec, TablesConfig
from .edges import EdgeStage, GraphCut
from .extra import open_duckdb, quoted
from .ids import IdRows, IdSpace, NodeIds, id_rows
from .nodes import NodeStage, earliest_of, times_by_node
from .sources import Table, ahead, file_mark
from .stages import RESUME, Stages

_SLACK_BYTES = 160 << 20  # what libraries keep for themselves
_LEAST_WORKING_BYTES = 64 << 20
_AT_ONCE = 1 << 20
_LOCK_TIMEOUT_S = 1.0
_NEAR = "near"  # the partitions of zones that were made of random ones
_PLACING = "PLACING"  # there while a finished result is on its way to its place: the name of its folder


def build(
    config: str | os.PathLike[str] | Mapping[str, Any] | TablesConfig,
    output_dir: str | os.PathLike[str],
    *,
    num_parts: int,
    memory: int | str = "4GB",
    resume: bool = False,
    kind: Kind = "random",
    edge_dir: Literal["in", "out"] = "in",
    seed: int = 0,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Builds a partition directory from tables.

    The result is the same, bit for bit, whatever the memory, the number of threads, and how rows are divided among
    files and row groups; and the same as a partitioner's that was given the whole graph in memory.

    Args:
        config: a YAML or JSON file, or what such a file holds (docs/tables.md).
        output_dir: may exist, and have files, but no partitions. Until everything is there, the build is in
            ``.<name>.build`` beside it.
        num_parts: number of partitions.
        memory: private memory that the process may take in all, page cache apart.
        resume: go on with the last finished stage of a build that was killed, or failed, at this place.
        kind: ``"random"`` (a keyed permutation of the ids), ``"range"`` (near-equal ranges of them), or ``"kaminpar"``
            or ``"ldg"``: zones of an order that is found when everything is read; rows are then written once more.
            ``"ldg"`` keeps to the memory but for some bytes a node, KaMinPar holds the graph besides.
        edge_dir: keep in- or out-neighbors with each node; loaders must ask for the same.
        seed: of the random assignment and of random splits.
        num_threads: None: as many as there are cores. Not part of the result.
        progress: told how far a stage is, every half second.

    Returns:
        The directory.

    Raises:
        InvalidArgumentError: an argument, or the config, is wrong.
        TableError: what the tables have is wrong; the message names file, row group, row and column.
        StorageError: a disk is full or fails; nothing is at ``output_dir`` then.
        MissingLibraryError: a library of the extra ``tables`` is needed, or KaMinPar, and not there.
    """
    if type(num_parts) is not int or num_parts < 1:
        raise InvalidArgumentError(f"num_parts: expected an int >= 1, got {num_parts!r}")
    if kind not in get_args(Kind):
        raise InvalidArgumentError(f"kind: expected one of {sorted(get_args(Kind))}, got {kind!r}")
    if edge_dir not in ("in", "out"):
        raise InvalidArgumentError(f"edge_dir: expected in or out, got {edge_dir!r}")
    if num_threads is not None and (type(num_threads) is not int or num_threads < 1):
        raise InvalidArgumentError(f"num_threads: expected an int >= 1, or None, got {num_threads!r}")
    if kind in ORDERERS:
        check_installed(kind)  # it is needed at the end
    tables = TablesConfig.load(config)
    budget = Budget(_working_bytes(parse_size(memory, name="memory")), num_threads or available_cores())
    options = {"num_parts": num_parts, "kind": kind, "edge_dir": edge_dir, "seed": seed}
    return build_with(tables, to_path("output_dir", output_dir), options, budget, resume=resume, progress=progress)


def _working_bytes(memory_bytes: int) -> int:
    """What is left of the memory when the process has what it has already."""
    with open("/proc/self/status", encoding="ascii") as status:
        own = next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))
    working = memory_bytes - own - _SLACK_BYTES
    if working < _LEAST_WORKING_BYTES:
        least = own + _SLACK_BYTES + _LEAST_WORKING_BYTES
        raise InvalidArgumentError(
            f"memory: expected at least {-(-least >> 20)} MB, {own >> 20} MB of which the process has already, got "
            f"{memory_bytes >> 20} MB"
        )
    return working


def build_with(
    config: TablesConfig,
    output_dir: Path,
    options: Mapping[str, Any],
    budget: Budget,
    *,
    resume: bool = False,
    progress: Progress | None = None,
) -> Path:
    """``build`` of checked arguments, within a budget."""
    directory = output_dir
    work = directory.absolute().parent / f".{directory.name}.build"
    goes_on = resume and (work / _PLACING).exists()
    if not goes_on:
        if resume and (directory / META_FILE).exists():
            raise InvalidArgumentError(f"resume: {directory} is finished; there is no build to go on with")
        new_directory(directory)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{work}: cannot be made: {error.strerror}") from error
    with locked_directory(work, _LOCK_TIMEOUT_S), disk_errors(work, RESUME):
        if not goes_on:
            meta = _Build(config, work, options, budget, resume=resume, progress=progress).run()
            write_meta(work / "out", meta)
            finished = _bring_near(work, options, progress) if options["kind"] in ORDERERS else "out"
            (work / _PLACING).write_text(finished, encoding="utf-8")
        _place(work, directory, goes_on=goes_on)
        shutil.rmtree(work, ignore_errors=True)
    return directory


def _bring_near(work: Path, options: Mapping[str, Any], progress: Progress | None) -> str:
    """Finds an order of what is finished, and makes partitions of its zones of it; the name of their folder."""
    shutil.rmtree(work / _NEAR, ignore_errors=True)  # of a build that was killed
    parts, by, seed = (options[name] for name in ("num_parts", "kind", "seed"))
    repartition(work / "out", work / _NEAR, num_parts=parts, by=by, seed=seed, progress=progress)
    return _NEAR


def _place(work: Path, directory: Path, *, goes_on: bool) -> None:
    """Gives what is finished its name; ``goes_on``: a build was killed while it did that, and some may be in place."""
    out = work / (work / _PLACING).read_text(encoding="utf-8")
    if not goes_on:
        try:
            put_in_place(out, directory)
        except InvalidArgumentError:  # something has come there meanwhile
            (work / _PLACING).unlink()
            raise
    elif out.exists():
        directory.mkdir(exist_ok=True)
        for name in sorted((entry.name for entry in out.iterdir()), key=lambda name: (name == META_FILE, name)):
            os.replace(out / name, directory / name)


class _Build:
    """One run of a build, over the stages that are left."""

    def __init__(
        self,
        config: TablesConfig,
        work: Path,
        options: Mapping[str, Any],
        budget: Budget,
        *,
        resume: bool,
        progress: Progress | None,
    ) -> None:
        self.config, self.work, self.budget, self.options = config, work, budget, options
        self.out = work / "out"
        opened = {spec.label_name: _open(spec, config.root, budget) for spec in self._specs() if _has_files(spec)}
        fingerprint = {
            **options,
            "config": config.to_dict(),
            "files": {name: table.fingerprint() for name, table in opened.items()} | self._databases(),
        }
        self.stages = Stages(work, fingerprint, resume=resume, progress=progress)
        self.out.mkdir(exist_ok=True)
        self.tables = opened
        self.files: list[ArrayFile] = []
        self.about: dict[str, list[dict[str, Any]]] = {"nodes": [], "edges": []}
        self.spaces: dict[NodeKey, IdSpace] = {}
        self.checksums: dict[NodeKey, str | None] = {}  # of the maps of ids
        self.books: dict[NodeKey, AnyBook] = {}
        self.times: dict[NodeKey, Any] = {}

    def _specs(self) -> Iterator[NodeTable | EdgeTable]:
        yield from self.config.nodes
        yield from self.config.edges

    def _databases(self) -> dict[str, list[list[Any]]]:
        """Of tables that are queried from a database, the mark of its file."""
        return {
            spec.label_name: [file_mark(self.config.root / spec.source.database)]
            for spec in self._specs()
            if spec.source is not None and spec.source.database is not None
        }

    def run(self) -> dict[str, Any]:
        """Runs all stages; what META.json will say."""
        for spec in self._specs():
            if spec.source is not None and spec.source.query is not None:
                self.tables[spec.label_name] = self._queried(spec)
        nodes = {
            spec.key: NodeStage(spec, self.tables[spec.label_name])
            for spec in self.config.nodes
            if spec.source is not None
        }
        dropped = {spec.key: self._ids(spec, nodes.get(spec.key)) for spec in self.config.nodes}
        if self.options["kind"] in ORDERERS:  # before anything is written
            check_num_parts(self.options["num_parts"], shape_of(sum(space.count for space in self.spaces.values()))[1])
        node_entries = [self._nodes(spec, nodes.get(spec.key), dropped[spec.key]) for spec in self.config.nodes]
        graph = GraphCut(self.spaces, self.books, self.options["edge_dir"], self._times_of)
        edge_entries = [entry for spec in self.config.edges for entry in self._edges(spec, graph)]
        for spec in self.config.nodes:
            if spec.degree is not None:
                self._degree(spec, graph)
        parts, edge_dir = self.options["num_parts"], self.options["edge_dir"]
        return make_meta(parts, edge_dir, node_entries, edge_entries, self.files, tables=self.about)

    def _scratch(self, name: str) -> Path:
        """A folder for a table's files on the way."""
        number = [spec.label_name for spec in self._specs()].index(name)
        return self.work / f"table{number}"

    # --- queries -----------------------------------------------------------------------------------------------

    def _queried(self, spec: NodeTable | EdgeTable) -> Table:
        """The rows of a query, asked once, as files: a query need not give them in one order twice."""
        source, path = spec.source, self._scratch(spec.label_name) / "query.parquet"
        assert source is not None
        query = (source.query or "").strip().rstrip(";")

        def ask(report: Report) -> None:
            shutil.rmtree(path.parent, ignore_errors=True)
            path.parent.mkdir()
            connection = None
            database = None if source.database is None else str(self.config.root / source.database)
            try:
                connection = open_duckdb(
                    self.budget.working_bytes // 2, path.parent / "spill", self.budget.threads, database
                )
                connection.execute("SET file_search_path=" + quoted(str(self.config.root)))
                connection.execute(f"COPY (\n{query}\n) TO {quoted(str(path))} (FORMAT parquet)")
            except Exception as error:
                if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
                    root = str(self.config.root)
                    note = f"; files in {root}, which has a comma or a backslash in its name, DuckDB does not find"
                    note = note if "," in root or "\\" in root else ""
                    raise TableError(f"{spec.label_name}: query: {str(error).strip():.500}{note}") from error
                raise
            finally:
                if connection is not None:
                    connection.close()

        self.stages.run(f"query {spec.label_name}", None, ask)
        return _open(replace(spec, source=SourceSpec((str(path),))), self.config.root, self.budget)

    # --- ids ---------------------------------------------------------------------------------------------------

    def _ids(self, spec: NodeTable, stage: NodeStage | None) -> dict[str, int]:
        """Makes the id space and the book of a type; how many rows of its table were dropped."""
        scratch = self._scratch(spec.label_name)

        def make(report: Report) -> dict[str, Any]:
            dropped: dict[str, int] = {}
            if stage is not None:
                space, dropped = stage.make_ids(self.out, scratch / "sort", self.budget, report)
            elif spec.num_nodes is not None:
                space = IdSpace(spec.num_nodes, "dense")
            else:
                space = self._ids_of_edges(spec, scratch / "sort", report)
            shutil.rmtree(scratch / "sort", ignore_errors=True)
            checksum = checksum_of(self.out / space.map_path) if space.map_path is not None else None
            fields = [space.count, space.kind, space.arrow_type, space.map_path]
            return {"space": fields, "checksum": checksum, "dropped": dropped}

        total = stage.table.num_rows if stage is not None else None
        done = self.stages.run(f"ids of {spec.label_name}", total, make)
        space = self.spaces[spec.key] = IdSpace(*done["space"])
        self.checksums[spec.key] = done["checksum"]
        parts = self.options["num_parts"]
        self.books[spec.key] = (
            RangePartitionBook.near_equal(space.count, parts)
            if self.options["kind"] == "range"
            else random_book(space.count, parts, self.options["seed"], spec.key)
        )
        return dict(done["dropped"])

    def _ids_of_edges(self, spec: NodeTable, scratch: Path, report: Report) -> IdSpace:
        """The ids that edges name, of a type that has no table of its own."""
        named = [
            (edge, column)
            for edge in self.config.edges
            for column, key in zip((edge.source_column, edge.target_column), edge.ends, strict=True)
            if key == spec.key
        ]
        types = [self.tables[edge.label_name].types[column] for edge, column in named]
        if len(kinds := set(map(id_kind, types))) != 1 or None in kinds:
            raise TableError(
                f"{spec.label_name}: expected ids of one kind, integers or texts, in all tables of edges, found "
                + ", ".join(
                    f"{dtype} in column {column!r} of {edge.label_name}"
                    for (edge, column), dtype in zip(named, types, strict=True)
                )
            )

        def rows() -> Iterator[IdRows]:
            for edge, column in named:
                for chunk in ahead(self.tables[edge.label_name].chunks([column])):
                    report(chunk.num_rows)
                    yield from id_rows([CheckedChunk(chunk, edge.drop & {"nulls"})], column)

        ids = NodeIds(spec.label_name, named[0][1], rows, types[0], distinct=False)
        return ids.make(self.out, spec.key, scratch, self.budget)

    # --- nodes -------------------------------------------------------------------------------------------------

    def _nodes(self, spec: NodeTable, stage: NodeStage | None, dropped: dict[str, int]) -> dict[str, Any]:
        """Everything about the nodes of a type; its entry of META.json."""
        space, book, scratch = self.spaces[spec.key], self.books[spec.key], self._scratch(spec.label_name)
        about: dict[str, Any] = {
            "type": spec.key,
            "id_column": spec.id_column,
            "id_type": space.arrow_type,
            "id_map": space.map_path,
            "id_map_crc32": self.checksums[spec.key],
            "features": [],
            "dropped": dropped,
        }
        earliest = None
        if stage is not None and (stage.arrays or spec.label is not None or spec.time_column is not None):
            name, total = spec.label_name, stage.table.num_rows
            if space.map_path is not None:
                numbers = stage.numbers(space, scratch)
                drop = stage.number_drops
                self.stages.run(
                    f"look up {name}", total, lambda report: numbers.look_up(self.out, self.budget, drop, report)
                )
            done = self.stages.run(
                f"read {name}",
                total,
                lambda report: stage.scatter(space, book, scratch, self.out, self.budget, self.options["seed"], report),
            )

            def write(report: Report) -> dict[str, Any]:
                files = stage.gather(done, book, scratch, self.out, report)
                times = times_by_node(self.out, spec.key, book, scratch) if spec.time_column is not None else ()
                return {"files": [file.to_dict() for file in files], "earliest": earliest_of(times)}

            written = self.stages.run(f"write {name}", space.count, write)
            self._add_files(done["files"], written["files"])
            about |= stage.describe(done)
            earliest = written["earliest"]
            if spec.time_column is not None:
                self.times[spec.key] = scratch
            shutil.rmtree(scratch / "rows", ignore_errors=True)
            shutil.rmtree(scratch / "ids", ignore_errors=True)
        self.about["nodes"].append(about)
        return node_entry(spec.key, book, None, earliest)

    def _add_files(self, *lists: Any) -> None:
        self.files += [ArrayFile.from_dict(entry) for entries in lists for entry in entries]

    def _times_of(self, key: NodeKey) -> Any:
        """The times of nodes by id, mapped; None where they have none."""
        if isinstance(self.times.get(key), Path):
            path = next(self.times[key].glob("times-*"), None)
            self.times[key] = np.load(path, mmap_mode="r") if path is not None else np.empty(0, np.int64)
        return self.times.get(key)

    # --- edges -------------------------------------------------------------------------------------------------

    def _edges(self, spec: EdgeTable, graph: GraphCut) -> list[dict[str, Any]]:
        """Everything about the edges of a table; the entries of META.json."""
        name, scratch = spec.label_name, self._scratch(spec.label_name)
        stage = EdgeStage(spec, self.tables[name], graph)
        total, numbers = stage.table.num_rows, stage.numbers(scratch)
        if numbers.is_needed:
            self.stages.run(
                f"look up {name}", total, lambda report: numbers.look_up(self.out, self.budget, spec.drop, report)
            )
        done = self.stages.run(f"read {name}", total, lambda report: stage.scatter(scratch, self.budget, report))
        shutil.rmtree(scratch / "ends", ignore_errors=True)
        entries = []
        for number, key in enumerate(spec.keys):

            def write(report: Report, number: int = number) -> list[Any]:
                entry, files = stage.gather(number, done, scratch, self.out, self.budget, report)
                return [entry, [file.to_dict() for file in files]]

            shown = name if number == 0 else f"reverse {name}"
            entry, files = self.stages.run(f"write {shown}", sum(done["counts"][number]), write)
            entries.append(entry)
            self._add_files(files)
            about = stage.describe(done) | {"dropped": done["dropped"] if number == 0 else {}}
            self.about["edges"].append({"type": None if key is None else list(key), **about})
        shutil.rmtree(scratch / "features", ignore_errors=True)
        for number in range(len(spec.keys)):
            shutil.rmtree(scratch / f"edges{number}", ignore_errors=True)
        return entries

    # --- degrees -----------------------------------------------------------------------------------------------

    def _degree(self, spec: NodeTable, graph: GraphCut) -> None:
        """Writes how many neighbors each node has, over all edge types whose rows are of its type."""
        keys = [key for edge in self.config.edges for key in edge.keys if graph.ends(key)[0] == spec.key]

        def write(report: Report) -> list[Any]:
            return [self._degrees_of(spec, keys, p, report).to_dict() for p in range(self.options["num_parts"])]

        self._add_files(self.stages.run(f"degrees of {spec.label_name}", self.spaces[spec.key].count, write))

    def _degrees_of(self, spec: NodeTable, keys: list[EdgeKey], partition: int, report: Report) -> ArrayFile:
        size = self.books[spec.key].partition_size(partition)
        offsets = [np.load(self.out / array_path("graph", key, "indptr", partition), mmap_mode="r") for key in keys]
        path = attr_path("node_attr", spec.key, str(spec.degree), partition)
        with ArrayWriter(self.out, path, torch.int64, (size,)) as writer:
            for first in range(0, size, _AT_ONCE):
                last = min(first + _AT_ONCE, size)
                degrees = np.zeros(last - first, np.int64)
                for indptr in offsets:
                    degrees += np.diff(indptr[first : last + 1])
                writer.append(torch.from_numpy(degrees))
                report(last - first)
            return writer.finish()


def _has_files(spec: NodeTable | EdgeTable) -> bool:
    return spec.source is not None and spec.source.query is None


def _open(spec: NodeTable | EdgeTable, root: Path, budget: Budget) -> Table:
    assert spec.source is not None
    stage = NodeStage if isinstance(spec, NodeTable) else EdgeStage
    columns, as_float = stage.columns_of(spec), stage.float_columns(spec)  # type: ignore[arg-type]
    return Table(spec.source, root, columns, as_float=as_float, chunk_bytes=budget.chunk_bytes)
