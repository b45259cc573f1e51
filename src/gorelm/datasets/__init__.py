"""Data to learn from: benchmark sets, synthetic problems with a known truth, and outliers."""

from gorelm.datasets.contamination import CONTAMINATIONS, contaminate
from gorelm.datasets.mulan import MULAN_TARGETS, load_mulan
from gorelm.datasets.synthetic import make_multitarget

__all__ = [
    "CONTAMINATIONS",
    "MULAN_TARGETS",
    "contaminate",
    "load_mulan",
    "make_multitarget",
]
