"""What the batches of a loader are a function of, besides epoch and index: small enough to save, and readable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from hashlib import blake2b

import torch

from ...data.schema import GraphSchema
from ...typing import NumNeighbors
from ..base import EdgeSamplerInput, NegativeSampling, NodeSamplerInput, SamplingConfig, SamplingType
from ..num_samples import samples_by_type

Settings = dict[str, int | str]
"""Settings by name. Two loaders whose settings are equal make the same batches of the same data set."""

_LONGEST_TEXT = 100


def config_settings(config: SamplingConfig, schema: GraphSchema) -> Settings:
    """How a loader samples, and the counts of nodes by which a data set is recognized.

    What batches carry besides (features, edge ids) is not among it: that may change without changing a draw.
    """
    settings: Settings = {
        "sampling_type": config.sampling_type.value,
        "num_neighbors": _short(str(_listed(config.num_neighbors))),
        "batch_size": config.batch_size,
        "shuffle": int(config.shuffle),
        "drop_last": int(config.drop_last),
        "seed": config.seed,
        "edge_dir": schema.edge_dir,
        "replace": int(config.replace),
        "with_weight": int(config.with_weight),
        "strategy": config.strategy,
        "disjoint": int(config.is_disjoint),
        "temporal_strategy": str(config.temporal_strategy),
        "num_nodes": _short(", ".join(map(str, schema.num_nodes))),
    }
    if config.num_samples is not None:
        settings["num_samples"] = _short(str(list(map(list, samples_by_type(schema, config.num_samples)))))
    if config.induced:
        settings["induced"] = 1
    if config.locality is not None:
        settings["locality"] = config.locality
    # Named only where it is not what loaders have by default: whether there are times is known to the data set alone.
    looks_at_no_times = config.sampling_type in (SamplingType.SUBGRAPH, SamplingType.HGT)
    has_own = config.temporal_strategy is None and not looks_at_no_times
    return settings | {"own_times": str(config.own_times)} if has_own and config.own_times != "uniform" else settings


def _listed(fanouts: NumNeighbors | None) -> object:
    """The same for the same fan-outs, however they were given: by type in any order, as lists or as tuples."""
    if isinstance(fanouts, Mapping):
        return sorted(((edge_type, list(hops)) for edge_type, hops in fanouts.items()), key=lambda item: item[0] or ())
    return None if fanouts is None else list(fanouts)


def input_settings(sampler_input: NodeSamplerInput | EdgeSamplerInput, near: torch.Tensor | None = None) -> Settings:
    """The input of a loader, as a count and a hash; and a hash of its order where batches are of near seeds."""
    parts: list[object] = [sampler_input.input_type]
    if (reverse_type := getattr(sampler_input, "reverse_type", None)) is not None:
        parts.append(reverse_type)
    for field in fields(sampler_input):
        value = getattr(sampler_input, field.name)
        if isinstance(value, torch.Tensor) and field.name != "input_id":  # it changes no draw
            parts += [field.name, value.to(torch.int64) if field.name in ("node", "row", "col") else value]
    negatives = sampler_input.neg_sampling if isinstance(sampler_input, EdgeSamplerInput) else None
    settings: Settings = {"num_inputs": len(sampler_input), "inputs": _digest(*parts)}
    settings["neg_sampling"] = _describe(negatives)
    return settings if near is None else settings | {"seed_order": _digest(near)}


def _describe(negatives: NegativeSampling | None) -> str:
    if negatives is None:
        return "None"
    words = ["triplet" if negatives.is_triplet() else "binary", str(negatives.amount)]
    words += ["strict"] if negatives.strict else []
    words += [f"hard {negatives.hard}"] if negatives.hard is not None else []
    for name in ("weight", "src_weight"):
        if (weight := getattr(negatives, name)) is not None:
            words.append(f"{name} {_digest(weight)}")
    return ", ".join(words)


def _digest(*parts: object) -> str:
    """A hash of texts and tensors, with the tensors' dtypes and shapes; 16 characters."""
    digest = blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, torch.Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 21]}... {_digest(text)}"
