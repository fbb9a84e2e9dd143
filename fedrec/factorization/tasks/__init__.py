"""Linear tasks of Ada-DPALS: ridge regression and descent with adaptive weights."""
