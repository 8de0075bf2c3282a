"""Numbers that the host and a GPU tell each other, in page-locked memory.

Copies from and to other host memory have the host wait for the stream. Page-locked memory is torch's, which keeps
blocks for the next copy and gives none of them away before the copy from or to it is done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def sent(tensors: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """Tensors of integers, int64 ``[n]`` each on the device: in one copy on the current stream, which nobody waits for.

    Those that lie there already, and on the CPU device all, are given as they are, contiguous.
    """
    found = [tensor.contiguous() for tensor in tensors]
    here = [number for number, tensor in enumerate(found) if tensor.device != device]
    if not here:
        return found
    sizes = [found[number].numel() for number in here]
    with torch.cuda.device(device):
        packed = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=True)
    for part, number in zip(torch.split(packed, sizes), here, strict=True):
        part.copy_(found[number])
    for number, part in zip(here, torch.split(packed.to(device, non_blocking=True), sizes), strict=True):
        found[number] = part
    return found


def moved(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """As ``tensor.to(device)``, and nobody waits where it goes from the host to a GPU."""
    device = torch.device(device)
    if tensor.is_cuda or device.type != "cuda":
        return tensor.to(device)
    with torch.cuda.device(device):
        return tensor.pin_memory().to(device, non_blocking=True)


class Reading:
    """Numbers that come from a device: what the current stream has made of them until now.

    Args:
        numbers: int64 ``[n]``; on the CPU device they are there.
    """

    def __init__(self, numbers: torch.Tensor) -> None:
        self._numbers = numbers
        self._done: torch.cuda.Event | None = None
        if numbers.is_cuda:
            with torch.cuda.device(numbers.device):
                self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
                self._numbers.copy_(numbers, non_blocking=True)
                # Whoever waits sleeps: the cores are for those who train.
                self._done = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
                self._done.record()

    def is_there(self) -> bool:
        """Whether ``wait`` would not wait."""
        return self._done is None or bool(self._done.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[int]:
        """The numbers."""
        if self._done is not None:
            self._done.synchronize()
        numbers: list[int] = self._numbers.tolist()
        return numbers
