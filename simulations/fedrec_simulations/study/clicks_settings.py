"""Settings of Ada-DPALS and DPALS on clicks by data set and epsilon: chosen on a tenth of each user's train clicks, never by test.

Moves along one setting at a time on a sixth of the users, one noise seed each, from the best of MovieLens 1M as clicks; what a line was
tried with is beside it. Width is 64 without noise, where a training still needs less than 10 GB and 15 minutes.
"""
