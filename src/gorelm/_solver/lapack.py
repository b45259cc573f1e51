r"""Cholesky factors without the interpreter's lock, so that threads factor at the same time.

NumPy's `cholesky` releases the lock, but transposes the matrix on the way in and out, which takes
as long as the factor itself; SciPy's functions keep the lock. These call the routines of SciPy's
LAPACK directly, with the pointers that `scipy.linalg.cython_lapack` publishes for compiled code.
Where it publishes other signatures than expected, SciPy's own functions do the same, with the lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.linalg import cython_lapack, lapack

from gorelm._typing import Array

_LOWER = b"U"  # in LAPACK's order of memory, rows are columns

# Signatures as published, where "d" stands for the type of a double.
_SIGNATURES = {
    "dpotrf": "char int d int int",
    "dpotrs": "char int int d int d int int",
    "dtrtri": "char char int d int int",
}
_TYPES: dict[str, type] = {"char": ctypes.c_char_p, "int": ctypes.POINTER(ctypes.c_int)}


def factor(A: Array) -> Array:
    """Return L, lower triangular with LL' = A, in the memory of A.

    Parameters
    ----------
    A : array (n, n)
        Symmetric, in C order; its lower triangle is read and overwritten. What is above L stays.

    Raises
    ------
    numpy.linalg.LinAlgError
        If A is not positive definite.
    """
    n = len(A)
    if (potrf := _routine("dpotrf")) is None:
        _, info = lapack.dpotrf(A.T, lower=0, clean=0, overwrite_a=1)
    else:
        info = potrf(_LOWER, n, A, n)
    if info:
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    return A


def solve(L: Array, B: Array) -> Array:
    """Return X with LL'X = B, for L from `factor`."""
    X, n = np.array(B, order="F"), len(L)
    if (potrs := _routine("dpotrs")) is None:
        return np.asarray(lapack.dpotrs(L.T, X, lower=0, overwrite_b=1)[0])
    potrs(_LOWER, n, X.shape[1], L, n, X, n)
    return X


def inverse(L: Array) -> Array:
    """Return the inverse of L from `factor`, or of its last rows and columns."""
    inverse, n = np.tril(L), len(L)
    if (trtri := _routine("dtrtri")) is None:
        return np.asarray(lapack.dtrtri(inverse.T, lower=0)[0].T)
    trtri(_LOWER, b"N", n, inverse, n)
    return inverse


@cache
def _routine(name: str) -> Callable[..., int] | None:
    """Return a routine of LAPACK that returns `info`; None: it is not as expected."""
    capsule = cython_lapack.__pyx_capi__[name]
    pointer_name = ctypes.pythonapi.PyCapsule_GetName
    pointer_name.restype, pointer_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    signature = pointer_name(capsule)
    kinds = _SIGNATURES[name].split()
    if _kinds(signature.decode()) != kinds:
        return None
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    types = [ctypes.c_void_p if kind == "d" else _TYPES[kind] for kind in kinds]
    function = ctypes.CFUNCTYPE(None, *types)(address(capsule, signature))

    def call(*arguments: bytes | int | Array) -> int:
        info = ctypes.c_int(0)
        given: list[object] = []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                given.append(argument.ctypes.data)
            elif isinstance(argument, bytes):
                given.append(argument)
            else:
                given.append(ctypes.byref(ctypes.c_int(argument)))
        function(*given, ctypes.byref(info))
        return info.value

    return call


def _kinds(signature: str) -> list[str]:
    """Return the kinds of a signature's arguments, such as "void (char *, int *, d *)"."""
    inside = signature.partition("(")[2].rpartition(")")[0]
    kinds = [argument.strip().removesuffix("*").strip() for argument in inside.split(",")]
    return ["d" if kind.endswith("_d") else kind for kind in kinds]
