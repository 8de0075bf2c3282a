"""How loops go through loaders of ``graphlearn_torch``, whose ``__iter__`` gives the loader itself."""

from __future__ import annotations

from typing import Any

from ...loader.epochs import EpochLoader


class OwnNext(EpochLoader):
    """A loader whose loops call ``__next__`` where a program's class has one of its own.

    ``super().__next__()`` gives the next batch of the loop; a loop that begins ends the one before.
    """

    @property
    def _has_own_next(self) -> bool:
        return type(self).__next__ is not EpochLoader.__next__

    def __iter__(self) -> Any:
        iterator = super().__iter__()
        if not self._has_own_next:
            return iterator
        self._own = iterator  # the loader holds it: who loops has the loader alone
        return self
