"""What calls of a group divide and put together: grids of workers with named axes, batches as dictionaries."""
