"""Embeddings or scores of all nodes: layer by layer, and out by the ids of the user's tables."""

from ..utils.progress import StageProgress
from .by_batches import infer_by_batches
from .options import InferenceOptions
from .pairs import score_pairs
from .results import Results, open_results, write_results
from .run import infer

__all__ = [
    "InferenceOptions",
    "Results",
    "StageProgress",
    "infer",
    "infer_by_batches",
    "open_results",
    "score_pairs",
    "write_results",
]
