"""The client's end of remote sampling, under GraphLearn-for-PyTorch's name."""

from ..distributed.producers.remote_channel import RemoteReceivingChannel

__all__ = ["RemoteReceivingChannel"]
