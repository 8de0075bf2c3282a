"""Jobs of servers and trainers: started on local processes, over ssh or on Ray, watched, and ended."""
