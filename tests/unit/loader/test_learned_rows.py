"""Learned rows in the batches of local loaders."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from graphlearn_dist import DistEmbedding
from graphlearn_dist.data import Dataset
from graphlearn_dist.errors import InvalidArgumentError
from graphlearn_dist.loader import LinkNeighborLoader, NeighborLoader, StaticShapes, SubGraphLoader

USERS, ITEMS, DIM = 60, 40, 3
BUYS = ("user", "buys", "item")
SELLS = ("item", "sold to", "user")


def typed(*, features: bool) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    users = torch.randint(USERS, (400,), generator=generator)
    items = torch.randint(ITEMS, (400,), generator=generator)
    dataset = Dataset()
    dataset.init_graph(
        {BUYS: torch.stack([users, items]), SELLS: torch.stack([items, users])},
        num_nodes={"user": USERS, "item": ITEMS},
    )
    if features:
        dataset.init_node_features({"item": torch.arange(ITEMS * 2.0, dtype=torch.float64).view(ITEMS, 2)})
    return dataset


def homogeneous() -> Dataset:
    dataset = Dataset()
    edges = torch.randint(USERS, (2, 500), generator=torch.Generator().manual_seed(2))
    dataset.init_graph(edges, num_nodes=USERS)
    return dataset


@pytest.mark.parametrize("features", [False, True])
def test_typed_rows_follow_features(features: bool) -> None:
    users = DistEmbedding(USERS, DIM, name="users", node_type="user")
    items = DistEmbedding(ITEMS, DIM, name="items", node_type="item")

    def note_width(batch: Any) -> Any:
        batch["item"].width = batch["item"].x.size(1)
        return batch

    loader = NeighborLoader(
        typed(features=features), [4, 3], ("user", torch.arange(USERS)), batch_size=20,
        embeddings={"user": users, "item": items}, transform=note_width,
    )  # fmt: skip
    for batch in loader:
        assert torch.equal(batch["user"].x, users(batch["user"].n_id))
        learned = items(batch["item"].n_id)
        if features:
            assert torch.equal(batch["item"].x[:, :2], loader.data.node_features["item"][batch["item"].n_id].float())
        assert torch.equal(batch["item"].x[:, -DIM:], learned)
        assert batch["item"].x.requires_grad
        assert batch["item"].width == DIM + 2 * features  # a transform sees them
    with torch.no_grad():
        assert not next(iter(loader))["user"].x.requires_grad


def test_rows_are_looked_up_when_a_batch_is_handed_out() -> None:
    """Batches made ahead have no stale rows."""
    rows, asked = torch.zeros(USERS, DIM), []

    def look_up(ids: torch.Tensor) -> torch.Tensor:
        asked.append(len(ids))
        return rows[ids]

    for count, batch in enumerate(
        NeighborLoader(homogeneous(), [3], torch.arange(USERS), batch_size=10, prefetch=2, embeddings=look_up), start=1
    ):
        assert len(asked) == count
        assert torch.equal(batch.x, torch.full((batch.num_nodes, DIM), count - 1.0))
        rows += 1


@pytest.mark.parametrize("kind", ["links", "subgraphs"])
def test_other_loaders_have_them_too(kind: str) -> None:
    dataset, embedding = homogeneous(), DistEmbedding(USERS, DIM, name="a")
    how: dict[str, Any] = {"batch_size": 10, "embeddings": embedding}
    if kind == "links":
        loader: Any = LinkNeighborLoader(dataset, [3], edge_label_index=torch.randint(USERS, (2, 30)), **how)
    else:
        loader = SubGraphLoader(dataset, torch.arange(USERS), [3], **how)
    for batch in loader:
        assert torch.equal(batch.x, embedding(batch.n_id))


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"shop": torch.abs}, r"embeddings: expected node types among \['item', 'user'\], got 'shop'"),
        ({"user": 3}, "embeddings: expected something that gives rows of ids, got int"),
    ],
)
def test_wrong_embeddings(wrong: Any, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        NeighborLoader(typed(features=False), [2], ("user", torch.arange(USERS)), embeddings=wrong)


def test_what_does_not_fit() -> None:
    embedding = DistEmbedding(USERS + 1, DIM, name="a")
    with pytest.raises(InvalidArgumentError, match=f"embeddings: expected {USERS} rows, one a node, got {USERS + 1}"):
        NeighborLoader(homogeneous(), [2], torch.arange(USERS), embeddings=embedding)
    with pytest.raises(InvalidArgumentError, match="embeddings: expected None with as_pyg_v1 or static_shapes"):
        NeighborLoader(
            homogeneous(), [2], torch.arange(USERS), embeddings=torch.abs, static_shapes=StaticShapes(100, 100)
        )
