"""Learned rows in one process: the values of torch's sparse embedding and optimizers."""

from __future__ import annotations

import contextlib
import copy
import errno
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphlearn_dist import DistEmbedding, SparseAdagrad, SparseAdam, SparseSGD
from graphlearn_dist.distributed.embeddings import checkpoint
from graphlearn_dist.distributed.embeddings.settings import OptimizerSettings
from graphlearn_dist.distributed.embeddings.table import sum_by_id
from graphlearn_dist.errors import InvalidArgumentError, StorageError, UnknownIdError
from tests.support.document_programs import programs
from tests.support.waiting import collect

NUM, DIM = 50, 5
ALL = torch.arange(NUM)
OPTIMIZERS = [
    (SparseSGD, torch.optim.SGD, {}),
    (SparseAdagrad, torch.optim.Adagrad, {"eps": 1e-3}),
    (SparseAdam, torch.optim.SparseAdam, {"betas": (0.8, 0.95), "eps": 1e-6}),
]


def rows_of(embedding: DistEmbedding) -> torch.Tensor:
    with torch.no_grad():
        return embedding(ALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("ours", "theirs", "how"), OPTIMIZERS)
def test_equals_torch(ours: Callable[..., Any], theirs: Any, how: dict[str, Any], dtype: torch.dtype) -> None:
    embedding = DistEmbedding(NUM, DIM, name="a", dtype=dtype)
    expected = torch.nn.Embedding(NUM, DIM, sparse=True, dtype=dtype, _weight=rows_of(embedding).clone())
    optimizer = ours([embedding], lr=0.1, **how)
    reference = theirs(expected.parameters(), lr=0.1, **how)
    generator = torch.Generator().manual_seed(1)
    for _ in range(20):
        reference.zero_grad()
        for _ in range(2):  # gradients accumulate
            ids = torch.randint(NUM, (30,), generator=generator)
            weights = torch.randn(30, DIM, generator=generator, dtype=dtype)
            for rows in (embedding(ids), expected(ids)):
                (rows * weights + rows.square()).sum().backward()
        optimizer.step()
        reference.step()
    assert embedding.step == 20
    torch.testing.assert_close(rows_of(embedding), expected.weight.detach())


def test_first_rows_depend_on_seed_name_and_id() -> None:
    one = rows_of(DistEmbedding(NUM, DIM, name="a"))
    assert torch.equal(one, DistEmbedding(NUM + 7, DIM, name="a")(ALL).detach())
    assert not torch.equal(one, rows_of(DistEmbedding(NUM, DIM, name="b")))
    assert not torch.equal(one, rows_of(DistEmbedding(NUM, DIM, name="a", seed=1)))
    assert not rows_of(DistEmbedding(NUM, DIM, name="a", init="zeros")).any()
    assert len(one.unique()) == NUM * DIM


def test_first_rows_have_their_distribution() -> None:
    """Bounds at six standard errors: a false alarm in 10^8 keys, and the key is fixed."""
    many = torch.arange(10_000)
    normal = DistEmbedding(10_000, 4, name="a", scale=2.0, dtype=torch.float64)(many).detach()
    assert abs(float(normal.mean())) < 6 * 2 / 200
    assert abs(float(normal.var()) - 4) < 6 * 4 * 2**0.5 / 200
    uniform = DistEmbedding(10_000, 4, name="a", init="uniform", scale=3.0, dtype=torch.float64)(many).detach()
    assert float(uniform.abs().max()) <= 3
    assert abs(float(uniform.mean())) < 6 * 3**0.5 / 200
    assert abs(float(uniform.var()) - 3) < 6 * 3 * 0.8**0.5 / 200


def test_sums_add_in_order() -> None:
    ids = torch.tensor([4, 1, 4, 4, 1])
    rows = torch.tensor([[1e8], [1.0], [1.0], [-1e8], [2.0]])
    distinct, sums = sum_by_id(ids, rows)
    assert distinct.tolist() == [1, 4]
    assert sums.tolist() == [[3.0], [0.0]]  # 1e8 + 1 is 1e8 in float32
    distinct, sums = sum_by_id(ids[:0], rows[:0])
    assert distinct.shape == (0,)
    assert sums.shape == (0, 1)


def test_without_gradients_rows_stay() -> None:
    embedding = DistEmbedding(NUM, DIM, name="a")
    optimizer = SparseAdam([embedding], lr=0.1)
    before = rows_of(embedding)
    embedding(ALL)  # used, but in no loss
    optimizer.step()
    embedding(ALL).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(rows_of(embedding), before)
    assert embedding.step == 2


def take_steps(embedding: DistEmbedding, optimizer: Any, until: int) -> None:
    while embedding.step < until:
        generator = torch.Generator().manual_seed(embedding.step)
        (embedding(torch.randint(NUM, (30,), generator=generator)) * torch.randn(30, DIM)).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(("ours", "theirs", "how"), OPTIMIZERS)
def test_a_checkpoint_goes_on_with_the_same_bits(
    ours: Callable[..., Any], theirs: Any, how: dict[str, Any], tmp_path: Path
) -> None:
    def trained(start: int, until: int, *, save: bool = False) -> torch.Tensor:
        embedding = DistEmbedding(NUM, DIM, name="a")
        if start:
            embedding.load(tmp_path)
        torch.manual_seed(start)
        take_steps(embedding, ours([embedding], lr=0.1, **how), 4)
        torch.manual_seed(4)
        if save:
            embedding.save(tmp_path)
        take_steps(embedding, ours([embedding], lr=0.1, **how), until)
        return rows_of(embedding)

    whole = trained(0, 8, save=True)
    assert torch.equal(trained(4, 8), whole)
    assert len(list(tmp_path.iterdir())) == 3 + {"SGD": 0, "Adagrad": 1, "SparseAdam": 2}[theirs.__name__]


def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = DistEmbedding(NUM, DIM, name="a")
    optimizer = SparseAdam([embedding], lr=0.1)
    take_steps(embedding, optimizer, 2)
    embedding.save(tmp_path)
    saved, names = rows_of(embedding), sorted(path.name for path in tmp_path.iterdir())
    take_steps(embedding, optimizer, 3)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "rows"))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "_reach_disk", full)
        with pytest.raises(StorageError, match="rows: cannot be written: No space left on device"):
            embedding.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    embedding.load(tmp_path)
    assert embedding.step == 2
    assert torch.equal(rows_of(embedding), saved)


def test_a_directory_with_something_else_is_left_alone(tmp_path: Path) -> None:
    embedding, other = DistEmbedding(NUM, DIM, name="a"), DistEmbedding(NUM, DIM, name="b")
    embedding.save(tmp_path / "a")
    (tmp_path / "a" / "mine-1-rows.npy").touch()
    embedding.save(tmp_path / "a")
    assert (tmp_path / "a" / "mine-1-rows.npy").exists()
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    with pytest.raises(InvalidArgumentError, match=r"one of its own for embedding 'b', .* has a checkpoint of 'a'"):
        other.save(tmp_path / "a")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    (tmp_path / "META.json").write_text('{"format": "another"}')
    with pytest.raises(InvalidArgumentError, match=r"directory: expected a new one, .* has another META\.json"):
        embedding.save(tmp_path)
    assert (tmp_path / "META.json").read_text() == '{"format": "another"}'


@pytest.mark.parametrize("name", ["META.json", "rows", "ids"])
def test_damaged_checkpoints_are_refused(name: str, tmp_path: Path) -> None:
    """Whatever byte differs, the rows are those that were saved, or the error says what is damaged."""
    embedding = DistEmbedding(NUM, DIM, name="a")
    take_steps(embedding, SparseAdam([embedding], lr=0.1), 1)
    embedding.save(tmp_path)
    saved = rows_of(embedding)
    path = next(path for path in tmp_path.iterdir() if name in path.name)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        with contextlib.suppress(StorageError, InvalidArgumentError):
            embedding.load(tmp_path)
        assert embedding.step == 1
        assert torch.equal(rows_of(embedding), saved)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StorageError):
        embedding.load(tmp_path)


def test_rows_in_files_have_the_same_bits(tmp_path: Path) -> None:
    """Rows and the optimizer's state are mapped, from files that nobody has to remove; a full disk is told."""
    found = []
    for path in (None, tmp_path / "rows"):
        embedding = DistEmbedding(NUM, DIM, name="a", path=path)
        torch.manual_seed(1)
        take_steps(embedding, SparseAdam([embedding], lr=0.1), 3)
        embedding.save(tmp_path / "saved")
        take_steps(embedding, SparseAdam([embedding], lr=0.1), 4)
        embedding.load(tmp_path / "saved")
        found.append(rows_of(embedding))
    assert torch.equal(*found)
    maps = Path("/proc/self/maps").read_text()
    assert maps.count(f"{tmp_path}/rows/.rows-") == 3
    assert not list((tmp_path / "rows").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        DistEmbedding(NUM, DIM, name="a", path=tmp_path / "file")


def test_uses_without_gradients_are_not_kept() -> None:
    """Such as those of a validation that is not in ``torch.no_grad()``."""
    embedding = DistEmbedding(NUM, DIM, name="a")
    rows = weakref.ref(embedding(torch.arange(NUM)))
    collect()
    assert rows() is None
    embedding(torch.empty(0, dtype=torch.int64)).sum().backward()
    SparseAdam([embedding], lr=0.1).step()
    assert embedding.step == 1


def test_what_is_dropped_is_not_counted_later() -> None:
    """Rows that are used again after ``zero_grad`` give what comes then."""
    embedding = DistEmbedding(NUM, DIM, name="a", init="zeros")
    optimizer, rows = SparseSGD([embedding], lr=1.0), embedding(torch.tensor([1, 1]))
    rows.sum().backward()
    rows.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert rows_of(embedding)[1].tolist() == [-4.0] * DIM
    rows.sum().backward()
    optimizer.zero_grad()
    rows.sum().backward()
    optimizer.step()
    assert rows_of(embedding)[1].tolist() == [-6.0] * DIM


def test_two_of_one_name_begin_alike_and_are_apart() -> None:
    one, other = DistEmbedding(NUM, DIM, name="a"), DistEmbedding(NUM, DIM, name="a")
    first = rows_of(other)
    take_steps(one, SparseSGD([one], lr=0.1), 1)
    assert torch.equal(rows_of(other), first)
    assert not torch.equal(rows_of(one), first)


@pytest.mark.parametrize(
    ("wrong", "argument"),
    [
        ({"num": 0}, "num"),
        ({"dim": -1}, "dim"),
        ({"name": ""}, "name"),
        ({"init": "ones"}, "init"),
        ({"scale": float("nan")}, "scale"),
        ({"dtype": torch.int64}, "dtype"),
        ({"num": True}, "num"),
        ({"scale": "wide"}, "scale"),
        ({"seed": "x"}, "seed"),
        ({"timeout_s": "1"}, "timeout_s"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"init": torch.nn.init.ones_}, "init"),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], argument: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{argument}: expected"):
        DistEmbedding(**{"num": NUM, "dim": DIM, "name": "a", **wrong})


def test_wrong_uses() -> None:
    embedding = DistEmbedding(NUM, DIM, name="a")
    with pytest.raises(InvalidArgumentError, match=r"ids: expected a torch\.Tensor of ids, got list"):
        embedding([0, 1])  # type: ignore[arg-type]
    with pytest.raises(UnknownIdError):
        embedding(torch.tensor([NUM]))
    with pytest.raises(InvalidArgumentError, match="params"):
        SparseSGD([], lr=0.1)
    with pytest.raises(InvalidArgumentError, match="lr"):
        SparseSGD([embedding], lr=-1.0)
    with pytest.raises(InvalidArgumentError, match="lr: expected a finite number of at least 0, got"):
        SparseSGD([embedding], lr="0.1")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="params: expected a list of DistEmbeddings, got DistEmbedding"):
        SparseSGD(embedding, lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="params: expected each embedding once"):
        SparseSGD([embedding, embedding], lr=0.1)
    with pytest.raises(TypeError, match="embedding 'a' cannot be copied or pickled"):
        copy.deepcopy(embedding)
    with pytest.raises(InvalidArgumentError, match="betas"):
        SparseAdam([embedding], lr=0.1, betas=(1.0, 0.9))
    for betas in (0.9, (0.9,), (0.9, 0.99, 0.999)):
        with pytest.raises(InvalidArgumentError, match="betas: expected two numbers"):
            SparseAdam([embedding], lr=0.1, betas=betas)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="kind"):
        OptimizerSettings("lion", 0.1)
    SparseSGD([embedding], lr=0.1).step()
    with pytest.raises(InvalidArgumentError, match="'sgd' as before"):
        SparseAdam([embedding], lr=0.1).step()


def test_the_page_says_what_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text = "\n".join(program.text for program in programs("embeddings.md"))
    exec(compile(text, "embeddings.md", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out == "10\n22\n"
