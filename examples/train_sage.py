"""Supervised node classification: GraphSAGE on sampled neighborhoods, in any mode.

Usage: python examples/train_sage.py [--mode local|collocated|mp|remote] [--data debian] [--workers 2] [--smoke]

The best weights on the validation nodes are tested. Of `debian`'s 58 classes it gets 78.9 % of the test nodes right in
one process, and 77.3 % with two trainers, whose batches together are twice as large and half as many.
`train_sage_remote.py` is a trainer of servers that are started by hand.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import modes
from job import partition, recipe_for
from training import loader_arguments, run

from graphlearn_dist.distributed import DistNeighborLoader
from graphlearn_dist.typing import Split

SMOKE_DATA = "community:1500:10:4:16"


def prepare(args: argparse.Namespace, out: Path, num_parts: int) -> dict[str, Any]:
    """Partitions the graph; its shape, and the settings that suit it."""
    spec = SMOKE_DATA if args.smoke else args.data
    recipe = recipe_for(spec)
    data = recipe.load(spec, seed=args.seed)
    partition(data, out, num_parts)
    settings = {name: getattr(recipe, name) for name in ("hidden", "dropout", "weight_decay", "lr", "batch_size")}
    if args.smoke:
        settings["batch_size"] = 64
    return {
        **settings,
        "fanout": [int(fanout) for fanout in recipe.fanout.split(",")],
        "epochs": args.epochs or (3 if args.smoke else recipe.epochs),
        "in_channels": data.x.shape[1],
        "num_classes": data.num_classes,
    }


def train(place: modes.Place, facts: dict[str, Any], args: argparse.Namespace) -> None:
    """One trainer."""
    settings = argparse.Namespace(**facts)

    def make_loader(split: Split, seed: int) -> Any:
        arguments = loader_arguments(settings, split)
        return place.loader(DistNeighborLoader, training=split is Split.train, random_seed=seed, **arguments)

    result = run(place.rank, settings, args.seed, make_loader)
    if place.rank == 0:
        print(f"test accuracy {result['test']['accuracy']:.2%}, weights of epoch {result['best']['epoch']}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(result, indent=2))


def parse_args() -> argparse.Namespace:
    parser = modes.parser(__doc__)
    parser.add_argument("--data", default="debian", help="see examples/datasets.py")
    parser.add_argument("--epochs", type=int, help="the recipe's, unless given")
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    modes.main(parse_args(), prepare, train)
