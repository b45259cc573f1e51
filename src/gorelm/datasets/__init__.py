"""Data to learn from: benchmark sets, own tables, synthetic problems with a known truth, outliers.

`load_mulan`, `fetch_mulan` and `list_mulan` know the Mulan sets, `load_table` reads CSV, Parquet
and ARFF, `read_table` the same without encoding anything, `make_multitarget` draws a problem,
`contaminate` plants outliers.
"""

from gorelm.datasets.arff import read_arff
from gorelm.datasets.contamination import CONTAMINATIONS, contaminate
from gorelm.datasets.fetch import DownloadError, fetch_mulan
from gorelm.datasets.mulan import MULAN_TARGETS, MulanSet, list_mulan, load_mulan
from gorelm.datasets.synthetic import make_multitarget
from gorelm.datasets.table import line_numbers, load_table, read_table

__all__ = [
    "CONTAMINATIONS",
    "MULAN_TARGETS",
    "DownloadError",
    "MulanSet",
    "contaminate",
    "fetch_mulan",
    "line_numbers",
    "list_mulan",
    "load_mulan",
    "load_table",
    "make_multitarget",
    "read_arff",
    "read_table",
]
