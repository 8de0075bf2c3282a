"""Gathers of a GPU beside copies: of its own memory beside copies on the card, of pinned memory beside its link.

    python benchmarks/bench_gather_gpu.py

Needs a GPU and a build with CUDA; `make gpu` runs it. Where there is a second GPU that it can read, its memory is
read, too. Rows are random ones of a tensor much larger than the processor's caches; those of a `device_cache` that has
them all, or hardly any. A rate counts the bytes of the rows that are written, for a gather as for a copy. The memory
that features take on the GPU is compared with what they should.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from gpu import GPU, describe, has_peer, require_gpu, seconds
from harness import median, print_table, spread, write_json

from graphlearn_dist.data import Feature, UnifiedTensor

GOAL, GOAL_FROM = 0.8, 256  # share of a copy's rate, for rows of so many bytes and more
HITS, MISSES = "a cache that has them", "a cache that has not"
WHERE = ("GPU memory", "pinned memory", HITS, MISSES, "memory of a peer")
CACHED = 32  # such a part of the rows is asked for where the cache is to have them


def make_store(where: str, rows: torch.Tensor) -> Feature | UnifiedTensor:
    """The rows where GPU 0 is to read them."""
    if where == "memory of a peer":
        tensor = UnifiedTensor(0, rows.dtype)
        tensor.append_device_tensor(rows, 1)
        return tensor
    if where in (HITS, MISSES):  # beside the counts of uses room for twice what is to be there
        return Feature(rows, device=0, device_cache=8 * len(rows) + 2 * rows.nbytes // CACHED, dtype=None)
    return Feature(rows, split_ratio=1.0 if where == "GPU memory" else 0.0, device=0, dtype=None)


def make_source(where: str, out: torch.Tensor) -> torch.Tensor:
    """What is copied to ``out`` for comparison: in the memory that the rows are read from."""
    if where == "memory of a peer":
        return torch.empty_like(out, device=torch.device("cuda", 1))
    in_host_memory = where in ("pinned memory", MISSES)
    return torch.empty_like(out, device="cpu", pin_memory=True) if in_host_memory else out.clone()


def measure_gather(where: str, width: int, args: argparse.Namespace) -> dict[str, Any]:
    """Bytes written per second by a gather of rows of ``width`` bytes, and by a copy of as many in one piece."""
    rows = torch.zeros((args.bytes // width, width), dtype=torch.uint8)
    rows[:, 0] = torch.arange(rows.size(0)).to(torch.uint8)
    feature = make_store(where, rows)
    asked = rows.size(0) // CACHED if where == HITS else rows.size(0)
    ids = torch.randint(0, asked, (args.out_bytes // width,), device=GPU)
    if not torch.equal(feature[ids][:, 0], ids.to(torch.uint8)):
        raise SystemExit(f"rows of {width} bytes in {where}: the gather is wrong")
    out = torch.empty((ids.numel(), width), dtype=torch.uint8, device=GPU)
    source = make_source(where, out)
    found: dict[str, list[float]] = {"gather": [], "copy": []}
    for number in range(args.repeats + 1):
        took = {"gather": seconds(lambda: feature[ids]), "copy": seconds(lambda: out.copy_(source))}
        for name, value in took.items():
            if number:  # the first warms up
                found[name].append(out.nbytes / value)
    share = median([a / b for a, b in zip(found["gather"], found["copy"], strict=True)])
    return {"row_bytes": width, "where": where, **found, "share": share}


def measure_memory(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes that a feature takes on the GPU by its promise, and as the driver counts them."""
    rows = torch.zeros(args.bytes // 512, 128)
    Feature(rows[:1], split_ratio=1.0, device=0).lazy_init_with_ipc_handle()  # the context, and the library
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    before, _ = torch.cuda.mem_get_info()
    feature = Feature(rows, split_ratio=0.5, device=0, hotness=torch.arange(len(rows)))
    feature.lazy_init_with_ipc_handle()
    torch.cuda.synchronize()
    taken = before - torch.cuda.mem_get_info()[0]
    promised = rows.nbytes // 2 + 4 * len(rows)  # half of the rows, and where each of all lies
    return {"promised_bytes": promised, "taken_bytes": taken, "ratio": taken / promised}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 400, 512, 1024, 2048, 4096])
    parser.add_argument("--bytes", type=int, default=1 << 32, help="of the rows that gathers read from")
    parser.add_argument("--out-bytes", type=int, default=1 << 31, help="of the rows of one gather")
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    require_gpu()
    places = WHERE if has_peer() else WHERE[:-1]
    gathers = [measure_gather(where, width, args) for where in places for width in args.widths]
    memory = measure_memory(args)
    rows = [
        [
            found["row_bytes"],
            found["where"],
            spread([rate / 1e9 for rate in found["gather"]]),
            spread([rate / 1e9 for rate in found["copy"]]),
            f"{found['share']:.0%}",
            "-" if found["row_bytes"] < GOAL_FROM else "yes" if found["share"] >= GOAL else "NO",
        ]
        for found in gathers
    ]
    header = ["row bytes", "rows in", "gather, GB/s", "copy, GB/s", "share", f"at least {GOAL:.0%}"]
    print_table("Gathers of a GPU beside copies", header, rows)
    print(
        f"\nmemory: {memory['taken_bytes'] / 1e9:.2f} GB taken, {memory['promised_bytes'] / 1e9:.2f} promised, "
        f"{memory['ratio']:.3f} times"
    )
    content = {**describe(), "settings": vars(args), "gathers": gathers, "memory": memory}
    print(f"written to {write_json('gpu_gather', content)}")


if __name__ == "__main__":
    main()
