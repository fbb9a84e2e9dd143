"""The Python API that `import fedrec` offers: data frames in, models with a guarantee out, by the
functions of `fedrec simulate`."""
