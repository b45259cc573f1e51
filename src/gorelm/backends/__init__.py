"""Other places for the rows of a fit than the memory of one process."""
