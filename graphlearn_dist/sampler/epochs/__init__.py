"""Which batches an epoch has, and which are made together or ahead."""
