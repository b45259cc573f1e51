"""The steps of `RobustELMRegressor`, each a function over dataclasses.

`owners.py` checks what is given, `task.py` has what every step reads. On request wrong inputs are
then filled in (`checking.py`, by `inputs.py`), and targets put on another scale (`skewed.py`). In
each step a row is judged by models that were not fitted to its target:

1. *Screen* (`screen.py`). A few networks with a bounded loss, fitted to folds; with a trimmed one,
   if only that sees two groups. If their out-of-fold errors, as the mean over the targets of
   log(1 + |error|), form two clear groups, the rows of the upper group are set aside. If those of a
   target's cells in the other rows do, the cells of the upper group become unknown (`cells.py`), as
   do single cells far beyond all others. Where no group stands out and a bounded loss predicts
   better than squares, the pull of all cells is bounded, unless squares predict far cells better.
2. *Search* (`search.py`). Ridge paths of many hidden layers with few nodes, on the rows that stay
   (of many rows, on a sample), compared by leave-one-out. Layers whose nodes see few inputs are
   drawn where inputs act together (`gorelm._features.interactions`), and again where their nodes
   explained most; the better draw stays. Nodes of others look in the directions in which a
   regression changes. The best few layers become the members of an
   ensemble; their predictions judge all rows again (`judge.py`), by errors and by what the values
   of wrong rows and cells look like (`wrong_values.py`). If they see one group, or if the best
   layers fitted to all rows predict what was set aside, nothing is. Else they are fitted to
   the flagged rows, too, with a bounded pull; rows that they now predict are no longer flagged.
3. *Refine* (`members.py`). The members get all their nodes and all rows, and judge all rows once
   more. With very many rows, their layers are chosen by what each adds to the others
   (`forward.py`). With some thousand rows of many inputs and targets they are chosen so, too, and
   the members are one regression on more nodes than rows (`wide.py`, `products.py`).
4. *Fit* (`members.py`). The members are fitted to the rows that stay. If rows or groups of cells
   were set aside, the targets of the others are first brought within a fence around their
   predictions, so that an outlier that was not found has a bounded influence, too.

New rows are scored on the scale of the fit by `new_rows.py`.

Leave-one-out predictions have a closed form (`gorelm._solver.ridge`). Of more than `search_rows`
rows, the members' predictions in step 3 are those of folds, whose fits are differences of sums over
blocks of rows (`layers.py`): the hidden outputs H are never held whole.

`benchmarks/defaults.py` chose the layers and the constants TWO_GROUPS, INNER_FENCE, GROSS,
FARTHEST_INPUT and MUCH_WORSE of the search, on tables that no comparison uses.
"""
