"""Where a loader's batches come from, behind one interface: this process, its subprocesses, or servers."""
