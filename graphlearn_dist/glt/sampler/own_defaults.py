"""What samplers are told, with the defaults of ``graphlearn_torch.sampler``."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ...distributed.session.trainer_seeds import loader_seed
from ...sampler import base
from ...sampler.links import negative_sampling
from ...typing import NumNeighbors
from ...utils.message_types import register_as_base


@register_as_base
class NegativeSampling(negative_sampling.NegativeSampling):
    """Which negatives are drawn; binary ones are no edges unless ``strict=False`` says otherwise.

    Targets of triplets are any nodes, as in GraphLearn-for-PyTorch.
    """

    def __init__(
        self,
        mode: negative_sampling.NegativeSamplingMode | str,
        amount: int | float = 1,
        weight: torch.Tensor | None = None,
        *,
        strict: bool | None = None,
        src_weight: torch.Tensor | None = None,
    ) -> None:
        is_binary = mode in ("binary", negative_sampling.NegativeSamplingMode.binary)
        super().__init__(mode, amount, weight, strict=is_binary if strict is None else strict, src_weight=src_weight)

    @classmethod
    def cast(cls, *args: Any, **kwargs: Any) -> Any:
        """As the base class's; an instance of that is taken as it is."""
        if len(args) == 1 and not kwargs and isinstance(args[0], negative_sampling.NegativeSampling):
            return args[0]
        return super().cast(*args, **kwargs)


@register_as_base
class SamplingConfig(base.SamplingConfig):
    """How a loader samples. Without a seed it has this trainer's, see ``docs/sampling.md``; labels are collected."""

    def __init__(
        self,
        sampling_type: base.SamplingType,
        num_neighbors: NumNeighbors | None,
        batch_size: int,
        shuffle: bool,
        drop_last: bool,
        with_edge: bool,
        collect_features: bool,
        with_neg: bool,
        with_weight: bool,
        edge_dir: Literal["in", "out"] | None,
        seed: int | None = None,
        **others: Any,
    ) -> None:
        super().__init__(
            sampling_type,
            num_neighbors,
            batch_size,
            shuffle,
            drop_last,
            with_edge,
            collect_features,
            with_neg,
            with_weight,
            edge_dir,
            loader_seed(seed, None),
            **{"collect_labels": True, **others},
        )
