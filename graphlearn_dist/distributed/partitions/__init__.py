"""What a process holds of a partitioned data set, answers for it, and knows of the other partitions."""
