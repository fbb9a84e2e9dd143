"""Certificates of released models: what anybody needs to recompute a model, its price and its
promise, without a party of the training."""
