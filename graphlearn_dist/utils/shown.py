"""What errors say that somebody gave. Imported where there shall be no torch: tensors are known by what they have."""

from __future__ import annotations

import reprlib


class _Short(reprlib.Repr):
    """As ``repr``, with the dtypes and shapes of tensors and arrays in the place of their numbers, and not endless."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 4, 200, 200, 200
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 12

    def repr1(self, x: object, level: int) -> str:
        dtype, shape = getattr(x, "dtype", None), getattr(x, "shape", None)
        if dtype is not None and isinstance(shape, tuple) and shape:
            return f"{'array' if type(x).__module__ == 'numpy' else 'tensor'}({dtype} {list(shape)})"
        return super().repr1(x, level)

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # longer than Python writes down
            return f"an integer of {x.bit_length()} bits"


_short = _Short()


def shown(value: object) -> str:
    """What an error says came: of tensors and arrays, in lists and dicts too, their dtypes and shapes alone."""
    return _short.repr(value)
