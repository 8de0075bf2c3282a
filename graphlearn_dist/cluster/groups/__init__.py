"""Groups of workers: one class in many processes, called together, watched and restarted."""
