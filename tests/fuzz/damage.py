"""Ways to damage the files of a partition directory, drawn from a seed: flips, values that point elsewhere, files that
are cut, extended, exchanged or gone, and a META.json that says something else."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

META = "META.json"
_NUMBERS = (0, 1, -1, 2, 63, 255, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))
_LEAVES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 7, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63, 10**40, 1.5, float("nan"), float("inf"), True),
    *(
        None,
        "",
        "x",
        "../x",
        "part0",
        "int64",
        "float64",
        "\ud800",
        "a\0b",
        [],
        [1],
        {},
        {"kind": "range", "bounds": [0]},
    ),
)

Files = dict[str, bytes]


def damaged(files: Mapping[str, bytes], numbers: random.Random) -> tuple[str, Files]:
    """What was done, and the files that are different now; one without bytes that was there is gone (None)."""
    result: dict[str, Any] = dict(files)
    done = []
    for _ in range(numbers.choice((1, 1, 1, 2, 3))):
        way = numbers.choice(_WAYS)
        done.append(f"{way.__name__[1:]}: {way(result, numbers)}")
    return "; ".join(done), {name: data for name, data in result.items() if data != files.get(name)}


def _pick(files: Mapping[str, Any], numbers: random.Random) -> str:
    """One of the arrays, those of the graph more often."""
    names = sorted(name for name, data in files.items() if name != META and data)
    graphs = [name for name in names if "/graph/" in name]
    return numbers.choice(graphs if graphs and numbers.random() < 0.5 else names)


def _data_start(data: bytes) -> int:
    return 10 + int.from_bytes(data[8:10], "little")


def _flip(files: dict[str, Any], numbers: random.Random) -> str:
    name = _pick(files, numbers)
    data = bytearray(files[name])
    first = 0 if numbers.random() < 0.2 else min(_data_start(data), len(data) - 1)
    for _ in range(numbers.choice((1, 1, 2, 8, 64))):
        data[numbers.randrange(first, len(data))] ^= 1 << numbers.randrange(8)
    files[name] = bytes(data)
    return name


def _set_numbers(files: dict[str, Any], numbers: random.Random) -> str:
    """Entries become numbers that are no ids or offsets, or are those of others."""
    name = _pick(files, numbers)
    data, width = bytearray(files[name]), numbers.choice((4, 8))
    first = _data_start(data)
    count = (len(data) - first) // width
    for _ in range(numbers.choice((1, 1, 2, 5, 30)) if count > 0 else 0):
        at = first + numbers.randrange(count) * width
        value = numbers.choice((*_NUMBERS, count, count - 1, numbers.getrandbits(8 * width), numbers.randrange(500)))
        data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    files[name] = bytes(data)
    return name


def _fill(files: dict[str, Any], numbers: random.Random) -> str:
    name = _pick(files, numbers)
    data = bytearray(files[name])
    first = min(_data_start(data), len(data) - 1) if numbers.random() < 0.9 else 0
    begin = numbers.randrange(first, len(data))
    end = min(len(data), begin + numbers.choice((8, 64, 4096)))
    byte = numbers.choice((0x00, 0xFF, 0x7F, None))
    data[begin:end] = numbers.randbytes(end - begin) if byte is None else bytes([byte]) * (end - begin)
    files[name] = bytes(data)
    return name


def _move(files: dict[str, Any], numbers: random.Random) -> str:
    """Two stretches of a file change places."""
    name = _pick(files, numbers)
    data = bytearray(files[name])
    first, width = _data_start(data), numbers.choice((8, 32, 128))
    if len(data) >= first + 2 * width:
        one, other = (first + numbers.randrange((len(data) - first) // width) * width for _ in range(2))
        data[one : one + width], data[other : other + width] = data[other : other + width], data[one : one + width]
    files[name] = bytes(data[: len(files[name])]).ljust(len(files[name]), b"\0")
    return name


def _resize(files: dict[str, Any], numbers: random.Random) -> str:
    """A file is cut or extended; META.json knows of its new size in most cases, of its new shape in some."""
    name = _pick(files, numbers)
    data = files[name]
    first = _data_start(data)
    if numbers.random() < 0.5:
        data = data[: numbers.choice((0, 7, first, len(data) - 1, len(data) - 8, numbers.randrange(len(data))))]
    else:
        data += numbers.randbytes(numbers.choice((1, 8, 64, 4096)))
    files[name] = data
    if numbers.random() < 0.8:
        _say_size(files, name, len(data), None)
    return name


def _reshape(files: dict[str, Any], numbers: random.Random) -> str:
    """The header says another shape, and META.json agrees in most cases."""
    name = _pick(files, numbers)
    data = files[name]
    first = _data_start(data)
    header = data[10:first].decode("latin1")
    begin, end = header.find("("), header.find(")")
    if begin < 0 or end < begin:
        return name
    shape = [int(part) for part in header[begin + 1 : end].split(",") if part.strip().isdigit()]
    place = numbers.randrange(len(shape) + 1)
    shape[place : place + 1] = [numbers.choice((0, 1, 2, 1000, 1 << 40, (1 << 62), *(extent + 1 for extent in shape)))]
    text = f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
    new = (header[:begin] + text + header[end + 1 :]).rstrip()
    header = new.ljust(len(header) - 1)[: len(header) - 1] + "\n"
    files[name] = data[:10] + header.encode("latin1") + data[first:]
    if numbers.random() < 0.8:
        _say_size(files, name, len(files[name]), shape)
    return name


def _exchange(files: dict[str, Any], numbers: random.Random) -> str:
    """Two files change places, and in most cases what META.json says of them."""
    one, other = _pick(files, numbers), _pick(files, numbers)
    files[one], files[other] = files[other], files[one]
    if numbers.random() < 0.8:
        entries = _entries(files)
        if entries is not None and one in entries and other in entries:
            for field in ("dtype", "shape", "bytes", "crc32"):
                entries[one][1][field], entries[other][1][field] = entries[other][1][field], entries[one][1][field]
            files[META] = json.dumps(next(iter(entries.values()))[0]).encode()
    return f"{one}, {other}"


def _remove(files: dict[str, Any], numbers: random.Random) -> str:
    name = _pick(files, numbers)
    files[name] = None
    if numbers.random() < 0.7:
        entries = _entries(files)
        if entries is not None and name in entries:
            meta, entry = entries[name]
            meta["files"].remove(entry)
            files[META] = json.dumps(meta).encode()
    return name


def _flip_meta(files: dict[str, Any], numbers: random.Random) -> str:
    data = bytearray(files[META])
    for _ in range(numbers.choice((1, 1, 3))):
        data[numbers.randrange(len(data))] = numbers.choice(b'0123456789-"[]{},.eEx\xff\x00')
    files[META] = bytes(data)
    return META


def _edit_meta(files: dict[str, Any], numbers: random.Random) -> str:
    """Some values of META.json become others, go, or appear twice."""
    meta = _load(files)
    if meta is None:
        return META
    edited = []
    for _ in range(numbers.choice((1, 1, 2))):
        places = list(_places(meta))
        if not places:
            break
        holder, key = numbers.choice(places)
        match numbers.randrange(5):
            case 0 if isinstance(holder, list):
                holder.insert(numbers.randrange(len(holder) + 1), holder[key])
            case 0 | 1 if numbers.random() < 0.5:
                del holder[key]
            case 2:
                other_holder, other_key = numbers.choice(places)
                holder[key] = copy.deepcopy(other_holder[other_key])
            case 3 if type(holder[key]) is int:
                holder[key] += numbers.choice((-1, 1, 1 << 33))
            case _:
                holder[key] = copy.deepcopy(numbers.choice(_LEAVES))
        edited.append(str(key))
    files[META] = json.dumps(meta).encode()
    return ", ".join(edited)


def _places(value: Any) -> Any:
    """(holder, key) of everything within a value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def _load(files: Mapping[str, Any]) -> Any:
    try:
        meta = json.loads(files[META])
    except (ValueError, TypeError):  # damaged before
        return None
    return meta if isinstance(meta, dict) else None


def _entries(files: Mapping[str, Any]) -> dict[str, tuple[Any, Any]] | None:
    meta = _load(files)
    try:
        return {entry["path"]: (meta, entry) for entry in meta["files"]}
    except (TypeError, KeyError):
        return None


def _say_size(files: dict[str, Any], name: str, num_bytes: int, shape: list[int] | None) -> None:
    entries = _entries(files)
    if entries is None or name not in entries:
        return
    meta, entry = entries[name]
    entry["bytes"] = num_bytes
    if shape is not None:
        entry["shape"] = shape
    files[META] = json.dumps(meta).encode()


_WAYS: tuple[Callable[[dict[str, Any], random.Random], str], ...] = (
    *(_flip, _flip, _set_numbers, _set_numbers, _set_numbers, _fill, _fill, _move),
    *(_resize, _reshape, _exchange, _remove, _flip_meta, _edit_meta, _edit_meta),
)
