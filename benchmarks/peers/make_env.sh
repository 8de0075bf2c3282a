#!/usr/bin/env bash
# Makes the environment of a peer that cannot share one with this project: make_env.sh dgl|glt|pyg DIRECTORY
# Its DIRECTORY/bin/python is then a --peer-python of bench_sampling.py. PYTHON chooses the interpreter (3.11 has wheels
# of all of them). torch from PyPI brings the CUDA libraries: about 5 GB each; an index of CPU wheels avoids that.
set -euo pipefail
peer=${1:?dgl, glt or pyg} directory=${2:?a directory}
"${PYTHON:-python3.11}" -m venv "$directory"
install() { "$directory/bin/python" -m pip install --disable-pip-version-check -q "$@"; }
case $peer in
  dgl) install torch==2.2.1 torchdata==0.7.1 'numpy<2' 'pandas<2.3' pydantic pyyaml 'setuptools<81' dgl==2.1.0 ;;
  glt) install torch==2.4.1 'numpy<2' torch_geometric==2.6.1 'setuptools<81' graphlearn-torch==0.2.4 ;;
  pyg)
    install torch torch_geometric numpy scipy setuptools wheel  # torch-sparse imports scipy
    # pyg-lib has no wheels on PyPI; where https://data.pyg.org can be reached, give PYG_WHEELS=URL of the index for
    # your torch. Without it torch-sparse is compiled here, for minutes, and not taken from pip's cache, which may hold
    # a build for another torch.
    if [ -n "${PYG_WHEELS:-}" ]; then
      install pyg-lib torch-scatter torch-sparse -f "$PYG_WHEELS"
    else
      install --no-cache-dir --no-build-isolation --no-deps torch-scatter==2.1.2 torch-sparse==0.6.18
    fi
    ;;
  *) echo "make_env.sh: unknown peer $peer: expected dgl, glt or pyg" >&2 && exit 1 ;;
esac
