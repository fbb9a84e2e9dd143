"""Experiments: the figures of the papers, and the study of our default beside them."""
