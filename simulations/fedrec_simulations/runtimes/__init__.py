"""Runtimes of real parties: in this process over Flower, in Ray, or a process each."""
