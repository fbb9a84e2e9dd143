"""`fedrec demo --deployment`: `trial` is what is trained, `parties` the processes, `deployment` the
order of it all."""
