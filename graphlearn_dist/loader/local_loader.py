"""What all loaders of a data set in this process share: prefetching, PyG objects."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..data.dataset import Dataset
from ..data.device.device_copies import Copy, DeviceCopies, pinned
from ..errors import InvalidArgumentError
from ..sampler.base import EdgeSamplerInput, NodeSamplerInput, RemoteSamplerInput, SamplingConfig
from ..sampler.batches import LocalBatches, with_own_times
from ..sampler.device.device_graph import device_of
from ..sampler.device.padding import StaticShapes
from ..sampler.device.static_batches import StaticBatches, ask, make_static_batches, new_request
from ..sampler.epochs.by_positions import PlacesByPositions, places_after
from ..sampler.epochs.fingerprint import Settings, config_settings, input_settings
from ..sampler.epochs.foresight import WINDOW
from ..sampler.epochs.locality import warn_of_locality
from ..sampler.epochs.schedule import BatchIndices, SeedSchedule
from ..sampler.inputs import resolve_input
from ..telemetry import DeviceCacheCounts, MadeStats
from ..telemetry.trace import set_batches, tracer
from ..utils.shown import shown
from ..utils.tensor import tensors_in
from ..utils.values import check_callable, to_flag
from .batch_source import BatchSource, DatasetSource, Named
from .dataloader_keywords import TORCH_ATTRIBUTES, DataLoaderKeywords
from .epochs import EpochLoader
from .learned_rows import Embeddings, with_learned_rows
from .own_order import OrderMark, OwnOrder
from .prefetch import check_prefetch, made_ahead
from .resume import Shard
from .thread_placement import ThreadPlacement
from .transform import allow_matrices, padded_to_pyg

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData

T = TypeVar("T")
Transform = Callable[[Any], Any]
_ORDER = "order_digest"  # in states
# What a program may not set on a loader that is there: torch says so, too, ...
_SET_FOR_GOOD = frozenset({"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"})
# ... and what it may where batches are made of PyG's data.
_OWN = frozenset({"collate_fn", "filter_fn"})
_CALLED = frozenset({*_OWN, "transform", "transform_sampler_output"})
_OF_THE_SOURCE = frozenset({"data", "node_sampler", "link_sampler", "input_data", "neg_sampling", "custom_cls"})


@dataclass(frozen=True)
class _Made:
    """A batch that was made ahead.

    Attributes:
        copy: it, on its way to the device.
        finish: what the thread that iterates makes the batch of it by; None: it is the batch.
    """

    copy: Copy
    finish: Callable[[Any], Any] | None


def _weakly(method: Callable[[], T]) -> Callable[[], T]:
    """A method, for its own object: one that held a method of its own would be garbage for the collector alone."""
    held = weakref.WeakMethod(method)

    def call() -> T:
        found = held()
        assert found is not None  # its object calls
        return found()

    return call


class LocalLoader(ThreadPlacement, EpochLoader):
    """Mini-batches from a data set held in this process.

    Batch ``i`` of epoch ``e`` is a pure function of the data set, the input and the config. Several iterations may be
    under way at once; each is an epoch of its own. ``loader(positions)`` is one batch of the seeds at these positions
    of the input, with draws that are a function of the epoch, of them, and of how often they were asked for in it;
    ``set_epoch`` chooses the epoch and counts anew. See ``sampler.epochs.by_positions``.

    Programs may bring a ``collate_fn`` or ``filter_fn`` of their own, in a subclass or set on the loader: batches of an
    iteration pass them as in PyG, the first in a background thread where ``num_workers`` asks for one, the second in
    the thread that iterates (with ``filter_per_worker`` beside the first).

    Args:
        data: graph, features and labels.
        sampler_input: seeds or links.
        config: how to sample.
        device: where batches go; None leaves them on the host, those of graphs on a GPU there. Background threads begin
            the copies to a GPU, from pinned memory on a stream of their own; the caller's current stream waits for that
            of the batch it is given.
        transform: called with each batch, in the thread that iterates.
        embeddings: learned rows (``DistEmbedding``) by node type, or one of a homogeneous graph; they are ``x`` of the
            batch's nodes, behind features where there are any, as they are when the batch is handed out.
        num_threads: threads of one batch; never changes it.
        prefetch: background threads that make batches ahead, 0 for none; never changes them. Without them a loader that
            uses no GPU may also be used in a fork of its process, such as a worker of a torch ``DataLoader``.
        as_pyg_v1: yield (batch size, ids, layers) instead of PyG objects.
        static_shapes: whether all batches have tensors of the same shapes, and which.
        keywords: others of torch's ``DataLoader``, see ``dataloader_keywords``.

    Attributes:
        data: what the loader was given.
        dataset: the positions of the seeds or links, as a range.
        transform: what is called with each batch.
        transform_sampler_output: what is called with the output of the sampler of PyG's data.

    Raises:
        InvalidArgumentError: static shapes of what has none, or that do not fit the data set.
    """

    static_batches: StaticBatches | None = None
    is_over_pyg = False  # whether it was given PyG's data
    _as_pyg_v1 = False
    _flattens = False  # whether positions may have two dimensions

    def __init__(
        self,
        data: Dataset,
        sampler_input: NodeSamplerInput | EdgeSamplerInput | RemoteSamplerInput,
        config: SamplingConfig,
        *,
        device: torch.device | None = None,
        transform: Transform | None = None,
        embeddings: Embeddings | None = None,
        num_threads: int = 1,
        prefetch: int = 2,
        as_pyg_v1: bool = False,
        static_shapes: StaticShapes | bool = False,
        keywords: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        warn_of_locality(config)
        if config.edge_format == "adj_t":
            allow_matrices()
        self.config = config
        self._input = resolve_input(sampler_input, data)
        self._resolved = with_own_times(config, self._input, data)
        self.batches = LocalBatches(data, self._input, self._resolved, num_threads)
        order = {"batch_size": config.batch_size, "shuffle": config.shuffle, "drop_last": config.drop_last}
        self._open(
            data,
            DatasetSource(data, config, self.batches, as_pyg_v1=as_pyg_v1),
            len(self._input),
            {**order, **keywords},
            functools.cache(_weakly(self._settings_of_data_set)),
            seed=config.seed,
            device=device_of(data) if device is None else device,
            transform=with_learned_rows(embeddings, data.schema, transform),
            prefetch=prefetch,
        )
        if embeddings is not None and (as_pyg_v1 or static_shapes is not False):
            raise InvalidArgumentError("embeddings: expected None with as_pyg_v1 or static_shapes")
        if config.edge_format != "edge_index" and (as_pyg_v1 or static_shapes is not False):
            raise InvalidArgumentError("edge_format: expected 'edge_index' with as_pyg_v1 or static_shapes")
        if self.keywords.own_order is None:
            self._schedule = self.batches.schedule
        elif config.locality is not None:
            raise InvalidArgumentError("locality: expected None beside an own sampler or batch_sampler")
        self._schema = data.schema
        self._constants = data.constants if config.collect_features else {}
        self._as_pyg_v1 = as_pyg_v1
        self.static_batches = self._make_static_batches(static_shapes)

    def _settings_of_data_set(self) -> Settings:
        near = self.batches.schedule.near
        return config_settings(self.config, self.data.schema) | input_settings(self._input, near)

    def _open(
        self,
        data: Any,
        source: BatchSource,
        num_inputs: int,
        keywords: Mapping[str, Any],
        settings: Callable[[], Settings],
        *,
        seed: int,
        device: torch.device | None,
        transform: Transform | None,
        prefetch: int,
        transform_sampler_output: Transform | None = None,
        filter_per_worker: bool | None = None,
    ) -> None:
        """What every loader in this process has, whatever it makes its batches of."""
        super().__init__(Shard())
        # Of a program's own order, where the loop is, and was before: each in an epoch.
        self._marks: tuple[tuple[int, OrderMark], ...] = ()
        self._num_loaded = 0  # states
        self.data = data
        self._source = source
        self._settings_of_source = settings
        self.keywords = DataLoaderKeywords(num_inputs, check_prefetch(prefetch), dict(keywords))
        self.dataset = self.keywords.dataset
        self._schedule = SeedSchedule(
            num_inputs, self.keywords.batch_size or 1, self.keywords.shuffle, self.keywords.drop_last, seed
        )
        self._copies = DeviceCopies(device)
        self.transform = transform
        self.transform_sampler_output = transform_sampler_output
        self.filter_per_worker = filter_per_worker
        self._asks_for_threads = "num_workers" in keywords
        self._by_positions = PlacesByPositions()
        self._named = threading.local()  # `places`: of the batch that a program's `collate_fn` makes
        self._is_open = True

    @property
    def _prefetch(self) -> int:
        """Background threads; one at a time where code runs that may not be made for several."""
        wanted: int = self.keywords.num_threads
        if self._has_own("collate_fn") or (self._filter_per_worker and self._has_own("filter_fn")):
            return min(wanted, 1) if self._asks_for_threads else 0
        is_foreign = self._source.runs_others or self.transform_sampler_output is not None or self._filter_per_worker
        return min(wanted, 1) if is_foreign else wanted

    @property
    def filter_per_worker(self) -> bool:
        """Whether ``collate_fn`` gives batches, as in PyG where nothing else is said and data are in host memory.

        What is made ahead in an iteration passes ``transform`` and ``filter_fn`` in the thread that iterates, unless
        this was set to True.
        """
        return self._filter_per_worker is not False

    @filter_per_worker.setter
    def filter_per_worker(self, value: bool | None) -> None:
        self._filter_per_worker = None if value is None else to_flag("filter_per_worker", value)

    def _makes_whole(self, collates: bool) -> bool:
        """Whether what makes a batch ahead calls ``filter_fn``, too; ``collates``: it calls an own ``collate_fn``."""
        return bool(self._filter_per_worker) or (collates and self.filter_per_worker)

    def _has_own(self, name: str) -> bool:
        """Whether the program brought this method: in a subclass, or set on the loader."""
        return name in self.__dict__ or getattr(type(self), name) is not getattr(LocalLoader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if "_is_open" in self.__dict__ and name in _SET_FOR_GOOD:
            raise InvalidArgumentError(f"{name}: a loader that was made keeps it, make another one")
        if "_is_open" in self.__dict__ and name in _OF_THE_SOURCE:
            value = self._source.replace(name, value, self.__dict__.get(name, value))
        if name in _CALLED:
            check_callable(name, value)
        if name in _OWN and value is None:
            raise InvalidArgumentError(f"{name}: expected something to call, got None")
        if name in _OWN and self.static_batches is not None:
            raise InvalidArgumentError(f"{name}: expected none of the program's own with static_shapes")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """What programs read of torch's loaders, such as ``batch_size`` and ``num_workers``."""
        if name in TORCH_ATTRIBUTES and "keywords" in self.__dict__:
            return getattr(self.keywords, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        """As of all loaders; over PyG's data as of PyG's, which programs compare."""
        name = type(self).__name__
        if self.is_over_pyg:
            return f"{name}()"
        if self._is_open_ended and self._own_length is None:
            return f"{name}({self._where}, batches as its sampler gives them)"
        return super().__repr__()

    def __call__(self, index: torch.Tensor | Sequence[int]) -> Any:
        """The batch of the seeds or links at some positions of the input, int ``[n]``."""
        batch = self.collate_fn(index)
        self._source.check()
        return batch if self.filter_per_worker else self.filter_fn(batch)

    def collate_fn(self, index: torch.Tensor | Sequence[int]) -> Any:
        """The batch of the seeds or links at some positions; without ``filter_per_worker`` what is sampled for it.

        Of a batch that a GPU made, and that has a row which is not there, a later call tells, or ``check``.
        """
        self._check_gpu_process()
        positions = self._positions(index)
        places = getattr(self._named, "places", None)
        place = self._by_positions.next(positions) if places is None else next(places)
        sampled = self._source.sample(positions, place)
        self._source.check(wait=False)  # a program that calls this alone never comes to the end of an epoch
        return self.filter_fn(sampled) if self.filter_per_worker else sampled

    def _positions(self, index: Any) -> torch.Tensor:
        """The positions that a program names, int64 ``[n]``: by numbers, or by a mask of all of them."""
        count = len(self.dataset)
        wanted = f"index: expected positions of seeds, int [n], or a mask [{count}]"
        try:
            given = torch.as_tensor(index)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"{wanted}, got {shown(index)}") from error
        if given.dtype == torch.bool and given.shape == (count,):
            return given.nonzero().view(-1)
        is_none = given.dtype == torch.bool or given.is_floating_point() or given.is_complex()
        is_list = given.dim() == 1 or (given.dim() == 2 and self._flattens)
        if not is_list or (is_none and given.numel()):  # an empty list has the dtype float32
            raise InvalidArgumentError(f"{wanted}, got {given.dtype} {list(given.shape)}")
        return given.to(torch.int64).flatten()

    def filter_fn(self, out: Any) -> Any:
        """The batch of what ``collate_fn`` gave, without ``filter_per_worker``."""
        return self._transformed(self._cut(out))

    def _cut(self, sampled: Any, *, as_parts: bool = False) -> Any:
        if self.transform_sampler_output is not None:
            sampled = self.transform_sampler_output(sampled)
        return self._source.cut(sampled, as_parts=as_parts)

    def _transformed(self, batch: Any) -> Any:
        return batch if self.transform is None else self.transform(batch)

    def _make_static_batches(self, shapes: StaticShapes | bool) -> StaticBatches | None:
        if shapes is False:
            return None
        if self._has_own("collate_fn") or self._has_own("filter_fn"):
            raise InvalidArgumentError("static_shapes: expected False with an own collate_fn or filter_fn")
        if self._as_pyg_v1 or not isinstance(self._input, NodeSamplerInput):
            raise InvalidArgumentError("static_shapes: expected a loader of nodes that yields PyG objects")
        if self.keywords.own_order is not None:
            raise InvalidArgumentError("sampler, batch_sampler: expected None with static shapes")
        sizes = StaticShapes() if shapes is True else shapes
        return make_static_batches(self.data, self._input, self._resolved, self.batches, sizes)

    def check_process(self) -> None:
        """Raises ``ForkedProcessError`` in a fork of the loader's process; not where it has no threads of its own and
        uses no GPU, which forks cannot."""
        if self._prefetch > 0:
            super().check_process()
        self._check_gpu_process()

    def _check_gpu_process(self) -> None:
        device = self._copies.device
        if self._source.uses_gpu or (device is not None and device.type == "cuda"):
            super().check_process()

    def _made(self) -> MadeStats:
        options = {
            "workers": "more prefetch or num_threads may help, as far as there are cores",
            "ahead": "a larger prefetch may help",
        }
        return MadeStats(self._where, self._source.counts.sums(), self._prefetch, options=options)

    def _device_cache(self) -> DeviceCacheCounts | None:
        return self._source.device_cache

    @property
    def _num_background_threads(self) -> int:
        count: int = self._prefetch
        return count

    @property
    def _num_batches(self) -> int:
        own = self.keywords.own_order
        return self._schedule.num_batches if own is None else len(own)

    @property
    def _is_open_ended(self) -> bool:
        return self.keywords.own_order is not None

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """See ``EpochLoader``; a program's own order has to begin as it did, or the next iteration raises."""
        state = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict
        digest = state.pop(_ORDER, None) if self._is_open_ended and isinstance(state, dict) else None
        super().load_state_dict(state)
        place = self._next
        self._marks = () if digest is None else ((place.epoch, OrderMark(place.next_batch, str(digest))),)
        self._num_loaded += 1

    def state_dict(self) -> dict[str, Any]:
        """See ``EpochLoader``; of a program's own order it has a digest of the positions until then, too."""
        state = super().state_dict()
        if self._pass is not None and 0 < state["next_batch"] == self._own_length:
            state |= {"epoch": state["epoch"] + 1, "next_batch": 0}  # by what it says of itself there are no more
        if (given := self._given_before(state["epoch"], state["next_batch"])) is not None:
            state[_ORDER] = given.digest
        return state

    def _given_before(self, epoch: int, index: int) -> OrderMark | None:
        """What a program's own order gave before a batch, where that is known."""
        found = (mark for of, mark in self._marks if (of, mark.count) == (epoch, index) and index > 0)
        return next(found, None)

    @property
    def _own_length(self) -> int | None:
        """Batches of a program's own order, where it says so."""
        if not self._is_open_ended:
            return None
        with contextlib.suppress(Exception):  # what that raises is the program's business
            return len(self.keywords.own_order)
        return None

    @property
    def num_remaining(self) -> int:
        """See ``EpochLoader``; by the length of the program's own order, 0 where it has none."""
        if not self._is_open_ended:
            return super().num_remaining
        place = self._next if self._pass is None else self._pass.place
        return max(0, (self._own_length or 0) - place.next_batch)

    def _settings(self) -> Settings:
        order = {"batch_size": self._schedule.batch_size, "shuffle": int(self._schedule.shuffle)}
        order |= {"drop_last": int(self._schedule.drop_last), "seed": self._schedule.seed}
        own = self.keywords.own_order
        named = {} if own is None else {"order": type(own).__name__}
        return {**self._settings_of_source(), **order, **named}

    def set_epoch(self, epoch: int) -> None:
        """See ``EpochLoader``; batches that are asked for by positions are of this epoch from now on."""
        super().set_epoch(epoch)
        self._by_positions.choose(epoch)

    def _start(self, run: int, epoch: int, indices: BatchIndices) -> Iterator[tuple[int, Any]]:
        self._by_positions.begin(epoch)
        own: OwnOrder | None = None
        num_loaded = self._num_loaded
        places: Iterable[int] = range(len(indices))
        if self._is_open_ended:
            own = OwnOrder(self.keywords.batches(), indices, self._given_before(epoch, indices[0]))
            places = own.places(WINDOW if self._source.looks_ahead else 0)

        def named(at: int) -> tuple[torch.Tensor, tuple[int, int]]:
            index = indices[at]
            return self._schedule.positions(epoch, index) if own is None else own.positions(at), (epoch, index)

        collates = self._has_own("collate_fn")  # as in torch, one that is set later is the next iteration's
        begin = self._placed(self.keywords.begin)
        if not (self._as_pyg_v1 or self._makes_whole(collates)):  # what is no batch, nobody follows to another stream
            begin = self._copies.beside_training(begin)
        with self._sampling(named, len(indices), collates) as sample:
            made = made_ahead(
                lambda at: self._make(epoch, indices[at], lambda: sample(at), collates),
                places,
                self._prefetch,
                each=self.keywords.batches_ahead,
                begin=begin,
            )
            with contextlib.closing(made):
                for at, (index, batch) in enumerate(zip(indices, made, strict=own is None)):
                    self._source.check(wait=False)
                    finished = self._finish(batch)
                    if own is not None:
                        mark = epoch, own.take(at)
                        # The state is that of the latest of several iterations, and of one that was loaded since. Who
                        # asks for it from another thread may find this batch delivered, or not yet.
                        if (run, num_loaded) == (self._run, self._num_loaded):
                            self._marks = (*self._marks[-1:], mark)
                    yield index, finished
        self.check()

    def _sampling(
        self, named: Named, count: int, collates: bool
    ) -> contextlib.AbstractContextManager[Callable[[int], Any]]:
        """See ``BatchSource.sampling``; by the program's own ``collate_fn``, where it ``collates``."""
        if collates:
            return contextlib.nullcontext(lambda at: self._collated(*named(at)))
        return self._source.sampling(named, count)

    def _collated(self, positions: torch.Tensor, place: tuple[int, int]) -> Any:
        """What the program's own ``collate_fn`` gives for a batch, as of a list of its positions."""
        self._named.places = places_after(*place)  # it may ask for several, such as two views of its seeds
        try:
            return self.collate_fn(positions.tolist())
        finally:
            self._named.places = None

    def check(self) -> None:
        """Waits for batches that a GPU makes; at the end of an epoch the loader does so itself.

        What is wrong with rows of a batch, or with one of static shapes, the host hears later: with a batch that is
        read after it, or here. A loop that is left half-way may leave some of it to the next one, or to a call of this.

        Raises:
            UnknownIdError: a node or edge of a batch has no row; zeros stood in for it. It is told once.
            BatchOverflowError: one of static shapes did not fit, and was all padding. It is told once.
        """
        self._source.check()
        if self.static_batches is not None:
            self.static_batches.check()

    def batch(self, epoch: int, index: int) -> Data | HeteroData:
        """One batch by its name, for example to look at "batch 4711 of epoch 3"."""
        self._check_gpu_process()
        named = self._schedule.positions(epoch, index), (epoch, index)
        collates = self._has_own("collate_fn")
        sample = self._collated if collates else self._source.sample
        made = self._make(epoch, index, lambda: sample(*named), collates)
        self._source.check()
        return self._finish(made)

    def batch_of(self, request: torch.Tensor) -> Data | HeteroData:
        """The batch of static shapes that a request on its device names; see ``sampler.device.static_batches``."""
        self._check_gpu_process()
        batch = self._make_static(request)
        is_there = self._copies.device in (None, batch.edge_stores[0].edge_index.device)
        copy = Copy(batch) if is_there else self._copies.begin(batch)
        return self._finish(_Made(copy, self._transformed))

    def _make_static(self, request: torch.Tensor) -> Data | HeteroData:
        if self.static_batches is None:
            raise InvalidArgumentError("static_shapes: expected a loader with static shapes")
        padded = self.static_batches.sample(request)
        return padded_to_pyg(padded, self._schema, self._constants)

    def _make(self, epoch: int, index: int, sample: Callable[[], Any], collates: bool) -> _Made:
        """A batch on its way to the device: what background threads do. A GPU that samples is asked by its name."""
        with self._copies.current():
            if tracer() is not None:
                set_batches(((self._trace_key, epoch, index),))
            if self.static_batches is not None:
                request = new_request(self.config.seed, self.static_batches.device)
                ask(request, epoch, self.batches.schedule.check_index(index))
                return _Made(self._copies.begin(self._make_static(request)), self._transformed)
            sampled, begun = sample(), perf_counter_ns()
            # What is left to do is said here: a program may set another `filter_fn` before it is done.
            if self._makes_whole(collates):
                batch, finish = sampled if collates else self.filter_fn(sampled), None
            elif self._has_own("filter_fn"):
                return _Made(self._copies.made(sampled, tensors_in(sampled)), self._filtered)
            else:
                batch, finish = self._cut(sampled, as_parts=self._copies.takes_parts), self._transformed
            made = _Made(self._begin_copy(batch), finish)
            self.times.converted(perf_counter_ns() - begun)
            return made

    def _begin_copy(self, batch: Any) -> Copy:
        if isinstance(batch, tuple):  # as_pyg_v1 is set
            return Copy(batch)
        return self._copies.begin(pinned(batch) if self.keywords.pin_memory else batch)

    def _filtered(self, sampled: Any) -> Any:
        """The batch by the program's own ``filter_fn``, on the device."""
        return self._copies.finish(self._begin_copy(self.filter_fn(sampled)))

    def _finish(self, made: _Made) -> Any:
        batch = self._copies.finish(made.copy)
        return batch if made.finish is None else made.finish(batch)
