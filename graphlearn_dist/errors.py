"""Every exception this package raises on purpose.

One tree, so that a caller can catch as widely or as narrowly as it likes. Each class survives a trip through
``pickle`` and through the RPC: its arguments are plain values.
"""

from __future__ import annotations


class GraphLearnError(Exception):
    """Base class of all errors raised by ``graphlearn_dist``."""


# --- what the caller passed ------------------------------------------------------------------------------------


class InvalidArgumentError(GraphLearnError, ValueError):
    """An argument is wrong; the message names it, says what was expected and what came."""


class UnknownIdError(InvalidArgumentError, IndexError):
    """A node or edge id lies outside the data set, or is not stored where it was asked for."""


class MissingKeyError(InvalidArgumentError, KeyError):
    """A batch lacks a key that it was expected to have."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


class CallArgumentError(InvalidArgumentError, AssertionError):
    """The data of a call on several workers does not fit the call; nothing was sent."""


class BatchOverflowError(GraphLearnError, ValueError):
    """A batch has more nodes or edges than its static shapes have room for."""


class NotInitializedError(GraphLearnError, RuntimeError):
    """Something was used before its ``init_*`` function, or after its shutdown."""


class ForkedProcessError(NotInitializedError):
    """An object with threads, sockets or workers is used in a fork of its process, where they are not."""


class NotPicklableError(GraphLearnError, TypeError):
    """An object with threads, sockets or workers of its own cannot be pickled or copied."""


# --- what the GPU does -----------------------------------------------------------------------------------------


class SystemLimitError(GraphLearnError, RuntimeError):
    """The system starts no more threads; the message says for what one was wanted."""


class CudaError(GraphLearnError, RuntimeError):
    """The CUDA runtime refused or failed; the message says at what, and why."""


# --- what is on disk -------------------------------------------------------------------------------------------


class StorageError(GraphLearnError):
    """A file of a data set cannot be used."""


class PartitionFormatError(StorageError):
    """A partition directory is foreign, truncated, damaged, or of another format version."""


class TableError(StorageError, ValueError):
    """A table has what no graph can be made of; the message names file, row group, row and column."""


class MissingLibraryError(GraphLearnError, ImportError):
    """A library that is optional, and wanted here, is not installed; the message says how to install it."""


# --- what travels between processes ----------------------------------------------------------------------------


class ChannelError(GraphLearnError):
    """A message channel cannot do what was asked."""


class ChannelClosedError(ChannelError):
    """The other side closed the channel, or died."""


class ChannelTimeoutError(ChannelError, TimeoutError):
    """Nothing arrived (or no room was free) within the deadline."""


class MessageTooLargeError(ChannelError, ValueError):
    """The message can never fit into the channel."""


class RpcError(GraphLearnError):
    """Base class of everything that can go wrong between two endpoints."""


class EmbeddingStateError(GraphLearnError, RuntimeError):
    """Learned rows are not in the state that a trainer believes; all trainers have to load a checkpoint."""


class ProducerGoneError(InvalidArgumentError):
    """A server was asked for batches of a producer that it does not have, or has no more."""


class PeerLostError(RpcError, ConnectionError):
    """A peer is gone: its connection closed, or it fell silent."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(peer, why)
        self.peer = peer
        self.why = why

    def __str__(self) -> str:
        return f"lost {self.peer}: {self.why}"


class DeadlineExceededError(RpcError, TimeoutError):
    """No answer within the deadline; the message says what was waited for."""


class OverloadedError(RpcError):
    """The peer refuses more work for now."""

    def __init__(self, peer: str, retry_after_s: float) -> None:
        super().__init__(peer, retry_after_s)
        self.peer = peer
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"{self.peer} is overloaded; try again in {self.retry_after_s:g} s"


class ProtocolError(RpcError):
    """The peer sent bytes that this version of the protocol does not allow."""


class VersionMismatchError(ProtocolError):
    """The peer speaks another version of the protocol."""


class AuthenticationError(RpcError):
    """The peer could not prove that it knows the token."""


class RegistryError(RpcError):
    """The registry refused: a rank that is taken, a world size that differs."""


class RemoteError(RpcError):
    """The callee raised; carries the remote type, message and traceback."""

    def __init__(self, peer: str, type_name: str, message: str, traceback: str) -> None:
        super().__init__(peer, type_name, message, traceback)
        self.peer = peer
        self.type_name = type_name
        self.message = message
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.type_name} on {self.peer}: {self.message}\n--- remote traceback ---\n{self.traceback}"


# --- what runs elsewhere ---------------------------------------------------------------------------------------


class SamplingWorkerError(GraphLearnError):
    """A sampling worker failed or died; the message says which one, where, in which stage, and why."""


class LaunchError(GraphLearnError):
    """A launched process failed; the message says which one and how.

    Attributes:
        code: its exit code, 128 + n after signal n; 1 where none has ended.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


class ResourceInsufficientError(GraphLearnError):
    """A cluster does not have what was asked for; the message lists both."""


class WorkerNameTakenError(InvalidArgumentError):
    """A live worker has that name already."""


class WorkerDiedError(GraphLearnError):
    """The process of a worker is gone; the message says which one and how it ended."""


class WorkerLateError(WorkerDiedError, DeadlineExceededError):
    """A worker was not constructed in time, and was killed; the message says which one, where, and after how long."""


class WorkerFailureError(GraphLearnError):
    """A call failed on some workers of a group.

    Attributes:
        method: what was called.
        failed_workers: their ranks, ascending.
        errors: the exception of each, by rank.
        results: what the others returned, by rank.
        restartable: whether each of them may still be restarted.
        where: node and pid of each, by rank.
    """

    def __init__(
        self,
        method: str,
        errors: dict[int, BaseException],
        results: dict[int, object],
        restartable: bool,
        where: dict[int, str],
    ) -> None:
        super().__init__(method, errors, results, restartable, where)
        self.method = method
        self.failed_workers = sorted(errors)
        self.errors = errors
        self.results = results
        self.restartable = restartable
        self.where = where

    def __str__(self) -> str:
        causes = [
            f"rank {rank} ({self.where[rank]}): {type(self.errors[rank]).__name__}: {self.errors[rank]}"
            for rank in self.failed_workers
        ]
        return f"{self.method} failed on {len(causes)} worker(s)\n" + "\n".join(causes)
