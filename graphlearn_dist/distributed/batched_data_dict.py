"""The names of ``cluster.data.batched_data_dict``, at the place where the cluster layer's documents have them."""

from ..cluster.data.batched_data_dict import BatchedDataDict, DynamicBatchingArgs, SequencePackingArgs, SlicedDataDict

__all__ = ["BatchedDataDict", "DynamicBatchingArgs", "SequencePackingArgs", "SlicedDataDict"]
