"""The kept corpus, and a few seconds of mutations of it; ``make fuzz`` looks for more, guided by coverage."""

from __future__ import annotations

import random
import resource
from pathlib import Path

from tests.fuzz.targets import TARGETS, check, first_inputs

CORPUS = Path(__file__).with_name("corpus")
ROUNDS = 8_000
MAX_GROWTH_BYTES = 256 << 20


def corpus() -> list[bytes]:
    return [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def mutated(data: bytes, other: bytes, numbers: random.Random) -> bytes:
    """Some bytes changed, dropped, doubled, or another input's."""
    result = bytearray(data)
    for _ in range(numbers.choice((1, 1, 2, 4, 16))):
        at = numbers.randrange(1, len(result) + 1)
        match numbers.randrange(6):
            case 0 if at < len(result):
                result[at] ^= 1 << numbers.randrange(8)
            case 1 if at < len(result):
                result[at] = numbers.choice((0, 1, 0x7F, 0x80, 0xC1, 0xDD, 0xDF, 0xFF, numbers.randrange(256)))
            case 2:
                del result[at : at + numbers.choice((1, 4, 64))]
            case 3:
                result[at:at] = result[at : at + numbers.choice((1, 8, 64))]
            case 4:
                start = numbers.randrange(len(other))
                result[at : at + 8] = other[start : start + numbers.choice((8, 64))]
            case _:
                result[at : at + 4] = numbers.getrandbits(32).to_bytes(4, "little")
    return bytes(result)


def memory() -> int:
    """The most memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def test_kept_inputs() -> None:
    inputs = corpus()
    assert {data[0] % len(TARGETS) for data in inputs} == set(range(len(TARGETS)))
    for data in [*first_inputs(), *inputs]:
        check(data)


def test_mutated_inputs() -> None:
    numbers = random.Random(20)
    inputs = corpus()
    before = memory()
    for _ in range(ROUNDS):
        data = mutated(numbers.choice(inputs), numbers.choice(inputs), numbers)
        try:
            check(data)
        except BaseException as error:
            raise AssertionError(f"input {data.hex()}") from error
    assert memory() - before < MAX_GROWTH_BYTES
