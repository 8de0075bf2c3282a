"""A partition that was put together in memory, in the order of its books.

Its graphs have a row for each id, its features whatever order ``id2index`` says, and its books may be tensors. What
samples, serves and shares reads a partition as a directory has it: the rows of its own ids, in the order of the book.
Rows that lie in that order already are not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...data.feature import Feature
from ...data.graph import Graph
from ...data.schema import EdgeDirection, by_type, edge_ends
from ...data.topology import Layout, Topology, extent
from ...errors import InvalidArgumentError
from ...partition import CachedRows, OwnedEdgesBook, PartitionBook, RangePartitionBook, TablePartitionBook
from ...partition.edge_book import default_edge_book
from ...partition.partition_book import BookId2Index, OffsetId2Index, as_book
from ...utils.values import label_of

LAYOUTS: dict[EdgeDirection, Layout] = {"out": "CSR", "in": "CSC"}


@dataclass(frozen=True)
class GivenPartition:
    """What a data set was given; each by type, or bare, or None. Compared by identity: nothing in it is read for that.

    Attributes:
        graph, node_features, edge_features, node_labels: the partition's own; labels may be those of all nodes.
        label_rows: by type, where the labels of ids lie; types without are labeled whole.
        node_pb, edge_pb, node_feat_pb, edge_feat_pb: books, or owners as tensors.
    """

    num_partitions: int
    partition_idx: int
    edge_dir: EdgeDirection
    graph_caching: bool
    graph: Any
    node_features: Any
    edge_features: Any
    node_labels: Any
    label_rows: Any
    node_pb: Any
    edge_pb: Any
    node_feat_pb: Any
    edge_feat_pb: Any
    books_are_shared: bool  # they are those of all partitions, and none is this one's own view

    def is_same(self, other: GivenPartition) -> bool:
        """Whether the same objects were given."""
        return _same_all(_of(self), _of(other))


def _of(given: GivenPartition) -> list[Any]:
    return list(vars(given).values())


def _same_all(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    return all(one is other or _same_setting(one, other) for one, other in zip(ones, others, strict=True))


def _same_setting(one: Any, another: Any) -> bool:
    return isinstance(one, (int, str)) and isinstance(another, (int, str)) and one == another


def _copies_of(name: str, key: Any) -> tuple[Any, ...]:
    return name, "cache", key


@dataclass
class HeldPartition:
    """The same in the order of the books, everything by type.

    Attributes:
        node_books, node_feature_books, edge_books: see ``PartitionParts``.
        label_books: of labels: the node's, or one that gives all to this partition, where it has the labels of all.
        graphs: rows of this partition's nodes.
        cached_graphs: the same of other partitions, by partition, where the whole graph was given to be kept at hand.
        node_features, edge_features, node_labels: by the rows of their books.
        node_caches, edge_caches: rows that other partitions own.
    """

    given: GivenPartition
    node_books: dict[Any, PartitionBook] = field(default_factory=dict)
    node_feature_books: dict[Any, PartitionBook] = field(default_factory=dict)
    edge_books: dict[Any, PartitionBook] = field(default_factory=dict)
    label_books: dict[Any, PartitionBook] = field(default_factory=dict)
    graphs: dict[Any, Graph] = field(default_factory=dict)
    cached_graphs: dict[int, dict[Any, Topology]] = field(default_factory=dict)
    node_features: dict[Any, Feature] = field(default_factory=dict)
    edge_features: dict[Any, Feature] = field(default_factory=dict)
    node_labels: dict[Any, torch.Tensor] = field(default_factory=dict)
    node_caches: dict[Any, CachedRows] = field(default_factory=dict)
    edge_caches: dict[Any, CachedRows] = field(default_factory=dict)

    def num_nodes(self) -> dict[Any, int]:
        """Nodes of each type in the whole data set."""
        return {key: book.num_ids for key, book in self.node_books.items()}


class PartitionHolder:
    """Makes ``HeldPartition`` of what is given, and makes again only what depends on what has changed since."""

    def __init__(self) -> None:
        self._made: dict[Any, tuple[tuple[Any, ...], Any]] = {}
        self._held: HeldPartition | None = None

    def current(self, given: GivenPartition) -> HeldPartition | None:
        """What is held of it, if that was made already."""
        held = self._held
        return held if held is not None and held.given.is_same(given) else None

    def hold(self, given: GivenPartition) -> HeldPartition:
        """What is held of it.

        Raises:
            InvalidArgumentError: a book is missing, or something does not fit its book.
            UnknownIdError: a row that the book gives to this partition is not there.
        """
        if self.current(given) is None:
            self._held = self._hold(given)
        assert self._held is not None
        return self._held

    def forget(self, value: Any) -> None:
        """Has what was made of an object made again: its memory has moved."""
        self._made = {key: made for key, made in self._made.items() if all(one is not value for one in made[0])}
        self._held = None

    def keep_copies(self, name: str, key: Any, copies: CachedRows) -> None:
        """The copies of rows of ``name`` lie elsewhere from now on, in what is held later, too."""
        place = _copies_of(name, key)
        if place in self._made:
            self._made[place] = self._made[place][0], copies

    def keep_labels(self, key: Any, labels: torch.Tensor) -> None:
        """The labels of a type that were put in order lie elsewhere from now on, in what is held later, too."""
        made_of, _ = self._made["labels", key]
        self._made["labels", key] = made_of, labels

    def _once(self, key: Any, make: Callable[..., Any], *made_of: Any) -> Any:
        """``make(*made_of)``, or what it gave before for the same objects."""
        before = self._made.get(key)
        if before is None or not _same_all(before[0], made_of):
            self._made[key] = before = made_of, make(*made_of)
        return before[1]

    def _hold(self, given: GivenPartition) -> HeldPartition:
        held = HeldPartition(given)
        held.node_books = self._books("node_pb", given.node_feat_pb if given.node_pb is None else given.node_pb, given)
        node_views = {**held.node_books, **self._books("node_feat_pb", given.node_feat_pb, given)}
        edge_pbs = self._books("edge_pb", given.edge_pb, given)
        self._hold_graphs(held)
        for key, view in node_views.items():
            _check_book_type("node_feat_pb", key, held.node_books, "node")
            book, cached = self._split("node", key, view, held.node_books[key], given)
            held.node_feature_books[key] = book
            self._hold_rows(held.node_features, held.node_caches, ("node_features", key), book, cached, given)
        edge_views = {**edge_pbs, **self._books("edge_feat_pb", given.edge_feat_pb, given)}
        for key in {**held.graphs, **edge_views}:
            book, cached = self._edge_book(held, key, edge_pbs, edge_views)
            held.edge_books[key] = book
            self._hold_rows(held.edge_features, held.edge_caches, ("edge_features", key), book, cached, given)
        for name, books in (("node_features", held.node_books), ("node_labels", held.node_books)):
            for key in by_type(getattr(given, name)):
                _check_book_type(name, key, books, "node")
        for key in by_type(given.edge_features):
            _check_book_type("edge_features", key, held.edge_books, "edge")
        self._hold_labels(held)
        return held

    def _books(self, name: str, value: Any, given: GivenPartition) -> dict[Any, PartitionBook]:
        total, own = given.num_partitions, given.partition_idx
        return {
            key: self._once((name, key), _named_book, book, total, own, label_of(name, key))
            for key, book in by_type(value).items()
        }

    # --- graphs ------------------------------------------------------------------------------------------------

    def _hold_graphs(self, held: HeldPartition) -> None:
        given = held.given
        for key, graph in by_type(given.graph).items():
            ends = edge_ends(key, given.edge_dir)
            for end in ends:
                _check_book_type("graph", end, held.node_books, "node")
            row_book, col_book = (held.node_books[end] for end in ends)
            held.graphs[key] = self._once(("graph", key), _own_graph, graph, row_book, col_book, given.edge_dir)
            if given.graph_caching and graph.row_book is None:
                for other in set(range(given.num_partitions)) - {given.partition_idx}:
                    seen = self._once(("row_book", key, other), type(row_book).for_partition, row_book, other)
                    place = "graph", key, other
                    rows = self._once(place, own_topology, graph.topo, seen, col_book, given.edge_dir)
                    held.cached_graphs.setdefault(other, {})[key] = rows

    # --- features ----------------------------------------------------------------------------------------------

    def _split(
        self, kind: str, key: Any, view: PartitionBook, book: PartitionBook, given: GivenPartition
    ) -> tuple[PartitionBook, torch.Tensor | None]:
        """The book of features that all partitions share, and the ids of others whose rows this one keeps too."""
        if view is book or given.books_are_shared:
            return view, None
        name = label_of(f"{kind}_feat_pb", key)
        found: tuple[PartitionBook, torch.Tensor | None]
        found = self._once(("split", kind, key), common_book, view, book, given.partition_idx, name)
        return found

    def _edge_book(
        self, held: HeldPartition, key: Any, books: Mapping[Any, PartitionBook], views: Mapping[Any, PartitionBook]
    ) -> tuple[PartitionBook, torch.Tensor | None]:
        if key in views:
            return self._split("edge", key, views[key], books.get(key, views[key]), held.given)
        given, topology = held.given, held.graphs[key].topo
        place = "edge_book", key
        return self._once(place, _edges_at_hand, topology, given.num_partitions, given.partition_idx), None

    def _hold_rows(
        self,
        features: dict[Any, Feature],
        caches: dict[Any, CachedRows],
        place: tuple[str, Any],
        book: PartitionBook,
        cached: torch.Tensor | None,
        given: GivenPartition,
    ) -> None:
        name, key = place
        feature: Feature | None = by_type(getattr(given, name)).get(key)
        if feature is None:
            return
        label = label_of(name, key)
        features[key] = self._once((name, key), own_feature, feature, book, label)
        if cached is not None and len(cached):
            caches[key] = self._once(_copies_of(name, key), _copies, feature, cached, label)

    # --- labels ------------------------------------------------------------------------------------------------

    def _hold_labels(self, held: HeldPartition) -> None:
        given = held.given
        for key, labels in by_type(given.node_labels).items():
            book, rows = held.node_books[key], by_type(given.label_rows).get(key)
            if rows is None:
                if len(labels) != book.num_ids:
                    raise InvalidArgumentError(
                        f"{label_of('node_labels', key)}: expected labels of all nodes [{book.num_ids}, ...], got "
                        f"{list(labels.shape)}"
                    )
                held.node_labels[key] = labels
                held.label_books[key] = self._once(("label_book", key), all_own, book)
            elif is_in_order(rows, book):
                held.node_labels[key], held.label_books[key] = labels, book
            else:
                held.node_labels[key] = self._once(("labels", key), _own_labels, labels, rows, book)
                held.label_books[key] = book


def _check_book_type(name: str, key: Any, books: Mapping[Any, Any], kind: str) -> None:
    if key not in books:
        wanted = f"{kind}_pb" if key is None else f"{kind}_pb[{key!r}]"
        raise InvalidArgumentError(f"{wanted}: expected the book of {label_of(name, key)}, got those of {list(books)}")


def is_in_order(id2index: Any, book: PartitionBook) -> bool:
    """Whether rows are known to be in the order of a book, from the way in which their ids are mapped alone."""
    if id2index is None:
        return is_trivial(book)
    if isinstance(id2index, OffsetId2Index):
        return isinstance(book, RangePartitionBook) and (id2index.offset, id2index.size) == (
            book.offset,
            book.partition_size(),
        )
    if isinstance(id2index, BookId2Index) or isinstance(book, OwnedEdgesBook):
        return getattr(id2index, "book", None) is book
    return False


def is_trivial(book: PartitionBook) -> bool:
    """Whether one partition owns all ids, with rows in the order of ids."""
    if isinstance(book, TablePartitionBook):
        return book.is_by_id
    return book.num_partitions == 1 and isinstance(book, RangePartitionBook)


def all_own(book: PartitionBook) -> PartitionBook:
    """The book of what each partition has for all ids, with rows in their order."""
    if is_trivial(book):
        return book
    own, count = book.partition_idx, book.num_partitions
    return RangePartitionBook.from_bounds([0] * (own + 1) + [book.num_ids] * (count - own), own)


def common_book(
    view: PartitionBook, book: PartitionBook, own: int, name: str
) -> tuple[PartitionBook, torch.Tensor | None]:
    """What one partition's view of a book says: who owns the rows, and of which it keeps copies.

    A view that differs from the book only in what it gives to this partition is that of one which keeps copies of
    others' rows, as ``cat_feature_cache`` makes it: each partition has another view, and they share the book.

    Args:
        view: who has which row, as this partition sees it.
        book: who has the nodes or edges.
        own: this partition.
        name: the view's name, for errors.

    Returns:
        The book that all partitions share, and the ids int64 of the copies, or None.
    """
    if view.num_ids != book.num_ids:
        raise InvalidArgumentError(f"{name}: expected a book of {book.num_ids} ids, got one of {view.num_ids}")
    if isinstance(view, OwnedEdgesBook) or isinstance(book, OwnedEdgesBook):
        return view, None
    owners = view.as_tensor()
    differ = (owners != book.as_tensor()).nonzero().view(-1)
    if not len(differ):
        return book, None
    return (book, differ) if bool((owners[differ] == own).all()) else (view, None)


def rows_at(feature: Feature, ids: torch.Tensor, name: str) -> torch.Tensor:
    """The rows of ids as they are stored; a view where they lie one behind another in this order."""
    rows = feature.rows_of(ids).to(torch.int64)
    stored = feature.feature_tensor
    if rows.numel() and int(rows.max()) >= len(stored):
        worst = int(rows.argmax())
        raise InvalidArgumentError(
            f"{name}: expected a row for each id of the partition, got {len(stored)} rows, and none for id "
            f"{int(ids[worst])}; where not all ids have a row, id2index says which has which"
        )
    first = int(rows[0]) if rows.numel() else 0
    if torch.equal(rows, torch.arange(first, first + len(rows))):
        return stored[first : first + len(rows)]
    return stored[rows]


def own_feature(feature: Feature, book: PartitionBook, name: str) -> Feature:
    """The rows that a book gives to its partition, in its order, in host memory; the feature itself if it is that."""
    if is_in_order(feature.id2index, book):
        return feature
    rows = rows_at(feature, book.local_ids(), name)
    return Feature(rows, book.id2index, dtype=None, num_threads=feature.num_threads, out_dtype=feature.out_dtype)


def _own_graph(graph: Graph, row_book: PartitionBook, col_book: PartitionBook, edge_dir: EdgeDirection) -> Graph:
    """The rows that a book gives to its partition; the graph itself if it is that."""
    if graph.row_book is not None:
        return graph
    if is_trivial(row_book) and graph.topo.layout == LAYOUTS[edge_dir]:
        _check_extent(graph.topo, row_book, col_book)
        graph.cover(row_book.num_ids, col_book.num_ids)
        return graph
    topology = own_topology(graph.topo, row_book, col_book, edge_dir)
    book = None if is_trivial(row_book) else row_book
    return Graph(topology, graph.mode, graph.device, row_book=book, device_group_list=graph.device_group_list)


def _check_extent(topology: Topology, row_book: PartitionBook, col_book: PartitionBook) -> None:
    largest = topology.num_cols, topology.row_count
    for count, book in zip(largest, (col_book, row_book), strict=True):
        if count > book.num_ids:
            raise InvalidArgumentError(
                f"node_pb: expected the owner of each of {count} nodes that the graph has, got {book.num_ids}"
            )


def own_topology(
    topology: Topology, row_book: PartitionBook, col_book: PartitionBook, edge_dir: EdgeDirection
) -> Topology:
    """Of a topology with a row for each id, the rows that a book gives to its partition, in its order.

    Edges in rows of other partitions' nodes are left out: they are sampled where those nodes are.
    """
    layout = LAYOUTS[edge_dir]
    if topology.layout != layout:
        source, target, edge_ids, weights = topology.to_coo()
        topology = Topology((source, target), edge_ids, weights, "COO", layout, edge_times=topology.edge_times)
    _check_extent(topology, row_book, col_book)
    ids = row_book.local_ids()
    indptr = topology.indptr
    within = ids.clamp(max=topology.row_count)  # ids beyond the rows have no edges: their row begins where it ends
    starts, ends = indptr[within], indptr[(within + 1).clamp(max=topology.row_count)]
    sizes = ends - starts
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    filled = sizes > 0
    first, count = int(starts[filled][0]) if bool(filled.any()) else 0, int(offsets[-1])
    if bool((starts[filled] == first + offsets[:-1][filled]).all()):  # they lie one behind another
        edges: Any = slice(first, first + count)
    else:
        edges = torch.arange(count) + (starts - offsets[:-1]).repeat_interleave(sizes)
    weights, times = topology.edge_weights, topology.edge_times
    return Topology.from_arrays(
        offsets,
        topology.indices[edges],
        topology.edge_ids[edges],
        layout=layout,
        num_cols=col_book.num_ids,
        edge_weights=None if weights is None else weights[edges],
        edge_times=None if times is None else times[edges],
    )


def _edges_at_hand(topology: Topology, num_partitions: int, own: int) -> PartitionBook:
    """The book of edges that have no features: those of this partition, as far as it knows."""
    sizes = [0] * num_partitions
    sizes[own] = topology.edge_count
    book = default_edge_book(
        extent(topology.edge_ids), sizes, lambda p: topology.edge_ids.sort().values if p == own else None
    )
    return book.for_partition(own)


def _named_book(book: Any, num_partitions: int, own: int, name: str) -> PartitionBook:
    return as_book(book, num_partitions, own, name=name)


def _copies(feature: Feature, ids: torch.Tensor, name: str) -> CachedRows:
    return CachedRows(ids, rows_at(feature, ids, name))


def _own_labels(labels: torch.Tensor, id2index: Any, book: PartitionBook) -> torch.Tensor:
    return rows_at(Feature(labels, id2index, dtype=None), book.local_ids(), "node_labels")
