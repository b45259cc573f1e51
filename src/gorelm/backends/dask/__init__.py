"""Fits whose rows are spread over the workers of a Dask cluster.

Pass dask arrays or dataframes to `fit` of a batch estimator while a `distributed.Client` is open.
An actor on every worker owns its partitions of H, T, E and U. In every iteration the weights B go
out, once per worker, and sums of the size of B come back: the iterates are those of one machine,
whatever the partitioning. See `from_arrays` for rows that are in this process's memory.
"""

from gorelm.backends.dask.fit import from_arrays

__all__ = ["from_arrays"]
