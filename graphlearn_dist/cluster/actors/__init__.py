"""Objects in processes of their own, on local processes or on Ray."""
