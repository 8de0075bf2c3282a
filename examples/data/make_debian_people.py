"""Make `debian_people.npz`, which makes the embedded demo graph a typed one, from the full archive `debian_core.npz`.

Usage: python make_debian_people.py SOURCE.npz [debian_people.npz]

The packages are those of `debian.npz`, in the same order. What is kept here:

    source_of_package     uint16 [68820]      the source package that each package is built from
    maintainer_of_source  uint16 [37590]      who maintains each source, as a shuffled number without a name
    uploaded_by           uint16 [2, 41044]   sources, and people who uploaded them besides
    num_people            int32  [1]

The file loads with `numpy.load(path, allow_pickle=False)`. It holds facts and numbers, no names and no addresses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path, nargs="?", default=Path(__file__).with_name("debian_people.npz"))
    args = parser.parse_args()
    with np.load(args.source, allow_pickle=False) as archive:
        arrays = {
            "source_of_package": archive["source_of_package"],
            "maintainer_of_source": archive["maintainer_of_source"],
            "uploaded_by": archive["edge_uploaded_by"],
            "num_people": archive["num_people"],
        }
    np.savez_compressed(args.target, **arrays)
    print(f"{args.target}: {args.target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
