"""``python -m graphlearn_dist`` is ``graphlearn-dist``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
