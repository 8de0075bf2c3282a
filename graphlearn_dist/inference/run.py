"""Layer-wise inference: one pass over all edges for each layer, block by block of nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import InvalidArgumentError, StorageError
from ..loader.learned_rows import Embeddings
from ..partition.layout import META_FILE, type_folder
from ..partition.storage import checksum_of
from ..utils.progress import Progress, StageProgress
from ..utils.system.directory_lock import locked_directory
from ..utils.system.disk import disk_errors
from ..utils.system.memory import memory_left_bytes
from .layers import Layer, Neighborhood, NodeScales, layers_of, modules_of, sparse_rows
from .options import RESULT_DTYPES, InferenceOptions
from .pieces import PieceSize
from .results import Results, check_free, finish_results, is_complete, open_results, write_files
from .rows import LayerAlone, LayerResult, LayerRows, Rows
from .source import Block, BlockSource
from .steady import SteadyRows
from .together import LayerTogether

_WORK, _STATE = ".partial", "STATE.json"
_LOCK_TIMEOUT_S = 1.0
_TELL_EVERY_S = 0.5
_BLOCKS_SHARE = 8  # of the memory that is left, all threads have one of so many parts for what they compute
_DEFAULT = InferenceOptions()


def infer(
    model: Any,
    data: Any,
    out: str | Path | None = None,
    *,
    options: InferenceOptions = _DEFAULT,
    embeddings: Embeddings | None = None,
    progress: Progress | None = None,
) -> Results:
    """Computes the rows that a model gives for all nodes, layer by layer.

    The rows are the same bits for any size of blocks, number of threads, of partitions and of servers, on one machine
    (docs/inference.md). While it runs, torch computes with one thread in this process.

    Args:
        model: one of PyG's ``BasicGNN``; a list of callables ``(x by type, edge_index by type) -> x by type``; or a
            model whose ``inference_layers()`` gives such a list. Modules are put into evaluation mode meanwhile.
        data: a partition directory, a ``data.Dataset``, a ``ServedDataset``, or PyG's ``Data`` or ``HeteroData``;
            sampled by in-neighbors.
        out: directory of the results, new or empty; None keeps them in memory.
        options: see there.
        embeddings: learned rows by node type, or one of a homogeneous graph: what gives rows ``[n, dim]`` of ids, such
            as a ``DistEmbedding``. They follow the features of their nodes, as in batches of loaders.
        progress: is told now and then how far a layer is.

    Returns:
        The rows of the last layer.

    Raises:
        InvalidArgumentError: an argument does not fit; the error names it.
        StorageError: ``out`` cannot be written. With ``resume`` it goes on when it can.
        DeadlineExceededError, PeerLostError: a server did not answer, or was not back in time. With ``out``, ``resume``
            goes on from there.
    """
    source = BlockSource(
        data,
        options.fanout,
        options.seed,
        together=options.together,
        embeddings=embeddings,
        reconnect_timeout_s=options.reconnect_timeout,
    )
    told = contextlib.nullcontext() if source.group is None else source.group.telling()
    resumes = "" if out is None else "; with resume=True it goes on when it can"
    with source, told, disk_errors(Path(out or ""), resumes):
        layers = layers_of(model, with_weights=options.weights)
        _check(source, layers, options, out)
        id_maps = _id_maps(source, options, out)
        if out is None:
            made = _by_name(source, _Run(source, layers, options, None, progress).run(model))
            return Results.in_memory({key: rows.read(0, rows.num_rows) for key, rows in made.items()}, id_maps)
        fingerprint = _fingerprint(model, source, options, len(layers))
        if options.resume and is_complete(Path(out), fingerprint):
            shutil.rmtree(Path(out) / _WORK, ignore_errors=True)  # of a process that was killed after its last file
        else:
            check_free(Path(out), but=_WORK)
            with _held(Path(out), source):
                work = _begin(Path(out), source, fingerprint, resume=options.resume)
                result = _Run(source, layers, options, work, progress).run(model)
                _write(Path(out), source, options, id_maps, fingerprint, result)
    return open_results(out)


@contextlib.contextmanager
def _held(out: Path, source: BlockSource) -> Iterator[None]:
    """One inference at a time writes to a directory; of several processes the first one holds its lock for all.

    Raises:
        StorageError: another inference writes there.
    """
    if source.group is not None and source.group.rank > 0:
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with locked_directory(out, _LOCK_TIMEOUT_S):
        check_free(out, but=_WORK)  # another one may have ended meanwhile
        yield


def _by_name(source: BlockSource, result: LayerResult) -> dict[Any, Rows]:
    rows = {source.schema.node_types[i]: rows for i, rows in result.rows().items()}
    if not rows and any(source.schema.num_nodes):
        raise InvalidArgumentError("model: expected rows of at least one node type of the last layer, got none")
    return rows


def _write(
    folder: Path,
    source: BlockSource,
    options: InferenceOptions,
    id_maps: Path | None,
    fingerprint: dict[str, Any],
    result: LayerResult,
) -> None:
    """The rows of the last layer, each process some of the files; what was on the way there is deleted."""
    group = source.group
    share = (0, 1) if group is None else (group.rank, len(group.names))
    rows = _by_name(source, result)
    entries = write_files(folder, rows, id_maps, options.format, options.file_bytes, share=share)
    source.meet()
    result.close()
    if share[0] == 0:
        finish_results(folder, entries, fingerprint)
        shutil.rmtree(folder / _WORK)
    source.meet()


def _check(source: BlockSource, layers: list[Layer], options: InferenceOptions, out: str | Path | None) -> None:
    if source.without_features():
        raise InvalidArgumentError(
            f"data: expected features of all node types, or embeddings of them, got none of {source.without_features()}"
        )
    if options.fanout != -1 and isinstance(layers[0], NodeScales):
        raise InvalidArgumentError("fanout: expected -1 (all neighbors) for PyG's GCN, which counts them")
    if options.weights:
        source.check_weights()
    for name in ("resume", "together"):
        if out is None and getattr(options, name):
            raise InvalidArgumentError(f"out: expected a directory with {name}=True, got None")
    for node_type in options.node_types or ():
        source.schema.node_type_index(node_type, "node_types")


def _id_maps(source: BlockSource, options: InferenceOptions, out: str | Path | None) -> Path | None:
    """The partition directory that has the original ids of nodes, seen to have them before anything is computed."""
    directory = source.directory if options.id_maps is None else Path(options.id_maps)
    if out is None or options.format != "parquet":
        return directory
    known = source.schema.columns.get("nodes", {})
    for node_type in options.node_types or source.schema.node_types:
        if directory is not None:
            _check_id_map(directory, node_type, source)
        elif known.get(node_type, {}).get("id_map"):
            raise InvalidArgumentError(
                f"id_maps: expected the partition directory with the ids of column {known[node_type]['id_column']} of "
                f"{node_type!r}, which format='parquet' writes and these data only number, got None"
            )
    return directory


def _check_id_map(directory: Path, node_type: Any, source: BlockSource) -> None:
    from ..tables import IdMap

    found = IdMap(directory, node_type).num_nodes
    expected = source.schema.num_nodes[source.schema.node_type_index(node_type, "node_types")]
    if found != expected:
        raise InvalidArgumentError(
            f"id_maps: expected the directory of these data, with {expected} nodes of {node_type!r}, got {directory} "
            f"with {found}"
        )


def _fingerprint(model: Any, source: BlockSource, options: InferenceOptions, num_layers: int) -> dict[str, Any]:
    """Whatever the rows, or their blocks, depend on."""
    crc = 0
    for module in modules_of(model):
        for name, tensor in module.state_dict().items():
            crc = zlib.crc32(name.encode(), crc)
            if isinstance(tensor, torch.Tensor):
                crc = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), crc)
    names = ("fanout", "weights", "block_size", "seed", "format", "file_bytes")
    found: dict[str, Any] = {name: getattr(options, name) for name in names}
    return {
        **found,
        "dtype": RESULT_DTYPES[options.dtype],
        "node_types": None if options.node_types is None else list(options.node_types),
        "num_layers": num_layers,
        "parameters": crc,
        **({"embeddings": source.learned} if source.learned else {}),
        **({} if source.directory is None else {"data": checksum_of(source.directory / META_FILE)}),
        "num_nodes": list(source.schema.num_nodes),
        "blocks": [len(source.blocks(i, options.block_size)) for i in range(len(source.schema.node_types))],
    }


def _begin(out: Path, source: BlockSource, fingerprint: dict[str, Any], *, resume: bool) -> Path:
    """The folder of this process's rows on the way."""
    group = source.group
    if group is None:
        return _begin_alone(out, out / _WORK, fingerprint, resume=resume)
    group.check_same("model, data, options", fingerprint)  # and all have seen that ``out`` is free
    works = [out / _WORK / f"process{rank}" for rank in range(len(group.names))]
    own = {**fingerprint, "partitions": list(group.partitions), "processes": len(works)}
    work = _begin_alone(out, works[group.rank], own, resume=resume)
    group.meet()
    for rank, other in enumerate(works):
        if not other.is_dir():
            raise InvalidArgumentError(f"out: expected one directory for all, got {out}, without {group.names[rank]}'s")
    return work


def _begin_alone(out: Path, work: Path, fingerprint: dict[str, Any], *, resume: bool) -> Path:
    state = work / _STATE
    if resume and state.exists():
        begun = _read_state(state)
        for name, value in json.loads(json.dumps(fingerprint)).items():
            if begun.get(name) != value:
                raise InvalidArgumentError(
                    f"resume: expected what {out} was begun with, but {name} differs: {begun.get(name)}, now {value}"
                )
        return work
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    temporary = work / f"{_STATE}.new"
    temporary.write_text(json.dumps(fingerprint), encoding="utf-8")
    os.replace(temporary, state)
    return work


def _read_state(path: Path) -> dict[str, Any]:
    """What an inference was begun with."""
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StorageError(f"{path}: cannot be read ({error}); without resume=True it begins anew") from error
    if not isinstance(begun, dict):
        raise StorageError(f"{path}: damaged; without resume=True it begins anew")
    return begun


@dataclass
class _Teller:
    """Tells how many nodes of a layer are done."""

    progress: Progress | None
    stage: str
    total: int
    done: int = 0

    def __post_init__(self) -> None:
        self._begin = self._told = time.monotonic()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count
            now = time.monotonic()
            if self.progress is not None and now - self._told >= _TELL_EVERY_S:
                self._told = now
                self.progress(StageProgress(self.stage, self.done, self.total, now - self._begin))

    def end(self) -> None:
        if self.progress is not None:
            elapsed = time.monotonic() - self._begin
            self.progress(StageProgress(self.stage, self.done, self.total, elapsed, finished=True))


class _Run:
    """One inference: its layers, over the blocks that are not done."""

    def __init__(
        self,
        source: BlockSource,
        layers: list[Layer],
        options: InferenceOptions,
        work: Path | None,
        progress: Progress | None,
    ) -> None:
        self._source, self._layers, self._options, self._work = source, layers, options, work
        self._progress = progress
        self._types = source.schema.node_types
        self._scales: LayerResult | None = None
        self._before: LayerResult | None = None  # of the layer before; None: the features
        group = source.group
        self._shares: Sequence[int | None] = [None] if group is None else group.partitions

    def run(self, model: Any) -> LayerResult:
        """What the last layer has made."""
        with _computing(model), ThreadPoolExecutor(self._options.threads, "inference") as threads:
            try:
                for number, layer in enumerate(self._layers):
                    made = self._run_layer(number, layer, threads)
                    if isinstance(layer, NodeScales):
                        self._scales = made
                        continue
                    if self._before is not None:
                        self._before.close()
                        self._forget(number - 1)
                    self._before = made
            finally:
                threads.shutdown(wait=False, cancel_futures=True)  # after an error no further block begins
        assert self._before is not None
        return self._before

    def _forget(self, number: int) -> None:
        """Deletes the rows of a layer that nobody reads any more."""
        if self._work is not None:
            self._over(number).touch()
            for file in self._work.glob(f"layer{number}-*.npy"):
                file.unlink()

    def _over(self, number: int) -> Path:
        """The mark of a layer whose rows were deleted: all blocks of the next one are done."""
        assert self._work is not None
        return self._work / f"layer{number}.over"

    def _run_layer(self, number: int, layer: Layer, threads: ThreadPoolExecutor) -> LayerResult:
        is_last = number == len(self._layers) - 1
        wanted = [
            i
            for i, name in enumerate(self._types)
            if not is_last or self._options.node_types is None or name in self._options.node_types
        ]
        if self._work is not None and self._over(number).exists():
            wanted = []
        total = sum(self._source.num_nodes(i, share) for i in wanted for share in self._shares)
        teller = _Teller(self._progress, f"layer {number + 1} of {len(self._layers)}", total)
        made: dict[int | None, dict[int, LayerRows]] = {share: {} for share in self._shares}
        for node_type in wanted:
            for share in self._shares:
                blocks = self._source.blocks(node_type, self._options.block_size, share)
                rows = self._open_rows(number, node_type, share, len(blocks))
                self._run_type(number, layer, blocks, rows, teller, threads)
                if rows.is_there:
                    made[share][node_type] = rows
        teller.end()
        return self._give(number, made)

    def _give(self, number: int, made: dict[int | None, dict[int, LayerRows]]) -> LayerResult:
        """Waits until all processes have come to the end of the layer; then all may read all of its rows."""
        group = self._source.group
        if group is None:
            return LayerAlone(made[None])
        widths = {i: rows.tensor.size(1) for of_share in made.values() for i, rows in of_share.items()}
        widths = {i: width for found in group.meet(widths).values() for i, width in found.items()}
        own = {
            share: {i: rows.tensor for i, rows in of_share.items()}
            for share, of_share in made.items()
            if share is not None
        }
        found = LayerTogether(group, f"layer{number}", self._source.books, widths, own, self._dtype_of(number))
        group.meet()
        return found

    def _dtype_of(self, number: int) -> torch.dtype:
        return torch.float32 if isinstance(self._layers[number], NodeScales) else self._options.dtype

    def _open_rows(self, number: int, node_type: int, share: int | None, num_blocks: int) -> LayerRows:
        name = self._types[node_type]
        file = f"layer{number}-{'all' if name is None else type_folder(name)}{'' if share is None else f'-{share}'}"
        count = self._source.num_nodes(node_type, share)
        return LayerRows(count, num_blocks, self._dtype_of(number), self._work, file)

    def _run_type(
        self,
        number: int,
        layer: Layer,
        blocks: list[Block],
        rows: LayerRows,
        teller: _Teller,
        threads: ThreadPoolExecutor,
    ) -> None:
        budget = memory_left_bytes() // _BLOCKS_SHARE // self._options.threads
        size = PieceSize(self._options.block_size, budget)

        def compute(index: int) -> None:
            block = blocks[index]
            if not rows.done[index]:
                self._run_block(number, layer, block, rows, size)
                rows.finish(index)
            teller.add(block.last - block.first)

        if blocks:
            threads.submit(compute, 0).result()  # makes the store
        for finished in [threads.submit(compute, index) for index in range(1, len(blocks))]:
            finished.result()

    def _run_block(self, number: int, layer: Layer, block: Block, rows: LayerRows, size: PieceSize) -> None:
        torch.set_num_threads(1)
        first, most = block.first, self._options.block_size
        while first < block.last:
            if self._source.group is not None:
                self._source.group.check()
            piece = replace(block, first=first, last=min(first + min(size.nodes, most), block.last))
            with torch.no_grad(), SteadyRows():  # type: ignore[no-untyped-call]
                neighborhood = self._neighborhood(number, layer, piece, size)
                if neighborhood is None:
                    most = (piece.last - first) // 2  # whatever other threads have learned meanwhile
                    continue
                self._run_piece(number, layer, piece, neighborhood, rows, size)
            first, most = piece.last, self._options.block_size

    def _run_piece(
        self, number: int, layer: Layer, piece: Block, neighborhood: Neighborhood, rows: LayerRows, size: PieceSize
    ) -> None:
        try:
            found = layer(neighborhood).get(self._types[piece.node_type])
        except Exception as error:
            if hasattr(error, "add_note"):  # from Python 3.11 on
                widths = {key: rows.size(1) for key, rows in neighborhood.x.items()}
                error.add_note(f"in layer {number} of the model, given rows of widths {widths} by node type")
            raise
        if found is None:
            return
        ids = self._ids(piece)
        places = ids if self._source.group is None else torch.arange(piece.first, piece.last)
        rows.write(places, found[: len(ids)])
        for each in (found, *neighborhood.x.values()):
            size.learn_width(each)

    def _ids(self, block: Block) -> torch.Tensor:
        return self._source.local_ids(block.node_type, block.partition)[block.first : block.last]

    # --- what a layer is given ---------------------------------------------------------------------------------

    def _neighborhood(self, number: int, layer: Layer, piece: Block, size: PieceSize) -> Neighborhood | None:
        """Of the piece; None where it does not fit into memory, which is known before edges are read, or sampled."""
        ids, num_edges = self._ids(piece), self._source.num_edges(piece)
        if num_edges is not None and not size.fits(len(ids), len(ids), num_edges, with_messages=not layer.only_adds):
            return None
        whole = self._whole_rows() if layer.only_adds and self._source.has_rows else None
        return self._sampled(number, layer, piece, ids, size) if whole is None else self._in_place(piece, ids, whole)

    def _whole_rows(self) -> torch.Tensor | None:
        if not self._source.schema.is_homogeneous:
            return None
        return self._source.whole_features(0) if self._before is None else self._before.whole(0)

    def _in_place(self, piece: Block, ids: torch.Tensor, whole: torch.Tensor) -> Neighborhood:
        """A piece whose layer adds up rows where they lie: no neighbor is numbered anew, and no row is copied."""
        edges = self._source.edges(piece, 0)
        adjacency = sparse_rows(edges.indptr, edges.neighbors, None, (len(ids), len(whole)))
        return Neighborhood(None, len(ids), {None: self._read({0: ids})[0]}, {}, {}, whole, adjacency)

    def _sampled(
        self, number: int, layer: Layer, piece: Block, ids: torch.Tensor, size: PieceSize
    ) -> Neighborhood | None:
        edge_types, node_types = self._types_read(layer, piece.node_type)
        graph = self._source.sample(piece.node_type, ids, number)
        names = self._source.schema.edge_types
        wanted = {i: graph.nodes[i] for i in node_types}
        num_rows = sum(map(len, wanted.values()))
        if not size.fits(len(ids), num_rows, graph.num_edges, with_messages=not layer.only_adds):
            return None
        rows = self._read(wanted) if layer.reads_rows else {}
        weights = {
            names[i]: found
            for i in (edge_types if self._options.weights else ())
            for found in [self._source.weights(piece, i)]
            if found is not None
        }
        return Neighborhood(
            node_type=self._types[piece.node_type],
            num_nodes=len(ids),
            x={self._types[i]: found for i, found in rows.items()},
            edge_index={names[i]: graph.edge_index[i] for i in edge_types},
            weights=weights,
            scales=None if self._scales is None else self._scales.gather({0: graph.nodes[0]})[0][:, 0],
        )

    def _types_read(self, layer: Layer, node_type: int) -> tuple[list[int], list[int]]:
        """Edge types that a layer is given for nodes of a type, and the node types of which it is given rows."""
        edge_types = self._source.edge_types_to(node_type)
        if layer.wants_all_types:
            edge_types = list(range(len(self._source.schema.edge_types)))
        ends = {self._source.schema.edge_specs[i] for i in edge_types}
        return edge_types, sorted({node_type, *(i for pair in ends for i in pair)})

    def _read(self, wanted: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        return self._source.features(wanted) if self._before is None else self._before.gather(wanted)


@contextlib.contextmanager
def _computing(model: Any) -> Iterator[None]:
    """Modules in evaluation mode, and torch with one thread: the blocks are what is computed at once."""
    threads = torch.get_num_threads()
    modules = [part for module in modules_of(model) for part in module.modules()]
    were_training = [module.training for module in modules]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
        none = torch.zeros(0, dtype=torch.int64)  # torch warns of what `compress` does once a process: here
        torch.sparse_csr_tensor(torch.zeros(1, dtype=torch.int64), none, none.float(), (0, 0))
    try:
        for module in modules:
            module.eval()
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)
        for module, was_training in zip(modules, were_training, strict=True):
            module.training = was_training
