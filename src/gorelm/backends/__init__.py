"""Other owners of rows: a GPU, a cluster. Each is imported only when it is asked for."""
