"""A graph of ONNX under construction: inputs, nodes and constants."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from gorelm._extras import needs
from gorelm._typing import Array, Indices

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

DType: TypeAlias = np.dtype[np.generic]
Shape: TypeAlias = list[str | int]  # a name stands for any length
Operand: TypeAlias = str | float | npt.NDArray[np.generic]  # the name of a tensor, or a constant

DOUBLE = np.dtype(np.float64)
TEXT = np.dtype(object)  # the type that ONNX's helpers take for strings
OPSET, ML_OPSET, IR_VERSION = 17, 3, 8  # of 2022; runtimes since then read them


def import_onnx() -> ModuleType:
    """Return the library, or raise ImportError with the command that installs it."""
    with needs("exporting models needs onnx", "onnx"):
        import onnx
    return onnx


class Graph:
    """A graph for numbers of type `dtype`; calling it adds a node."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.numbers: list[str] | None = None  # names of X's columns, where others are inputs too
        self.half_width: Array | None = None  # of the targets' intervals, where there are any
        self.metadata: dict[str, str] = {}
        self._onnx = import_onnx()
        self._inputs: list[ValueInfoProto] = []
        self._nodes: list[NodeProto] = []
        self._constants: list[TensorProto] = []
        self._dtypes: dict[str, DType] = {}

    def input(self, name: str, dtype: DType, width: int) -> str:
        """Add an input of shape (N, width)."""
        if name in self._dtypes:
            raise TypeError(f"two tensors of the graph would be named {name!r}: rename the column")
        self._inputs.append(self._info(name, dtype, ["N", width]))
        self._dtypes[name] = dtype
        return name

    def __call__(self, op: str, *inputs: Operand, **attributes: object) -> str:
        """Add a node and return the name of its output.

        Constants take the type of the first input, which must be a name. The output is taken to be
        of that type, too; for a comparison this is the type of what it compares.
        """
        dtype = self._dtypes[str(inputs[0])]
        names = [self._named(value, dtype) for value in inputs]
        name = f"{op}/{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(op, names, [name], **attributes))
        self._dtypes[name] = dtype
        return name

    def one_hot(self, x: str, categories: list[str]) -> str:
        """Add an encoder of one column of strings: (N, len(categories)), float64."""
        known = {"cats_strings": categories, "zeros": 1, "domain": "ai.onnx.ml"}
        encoded = self("OneHotEncoder", x, **known)
        self._dtypes[encoded] = np.dtype(np.float32)
        return self.cast(self("Squeeze", encoded, np.array([1])), DOUBLE)

    def distances(self, x: str, centres: Array) -> str:
        """Add ‖x − c‖₁ of every row and centre, row after row: (N, centres), float64."""
        helper = self._onnx.helper
        row, difference, sizes, distances = (
            f"row/{len(self._nodes)}/{name}" for name in ("x", "difference", "sizes", "distances")
        )
        # All rows at once would take N times the memory of the centres.
        one = self._info(row, DOUBLE, [centres.shape[1]])
        out = self._info(distances, DOUBLE, [len(centres)])
        C, axis = self._named(centres, DOUBLE), self._named(np.array([1]), DOUBLE)
        body = [
            helper.make_node("Sub", [C, row], [difference]),
            helper.make_node("Abs", [difference], [sizes]),
            helper.make_node("ReduceSum", [sizes, axis], [distances], keepdims=0),
        ]
        each_row = helper.make_graph(body, "distances", [one], [out])
        # onnxruntime cannot scan zero rows: one is added, and its result is cut off.
        rows = self("Concat", self.cast(x, DOUBLE), np.zeros((1, centres.shape[1])), axis=0)
        D = self("Scan", rows, body=each_row, num_scan_inputs=1)
        return self("Slice", D, np.array([0]), np.array([-1]))

    def distances_within(self, x: str, subsets: Indices, centres: Array) -> str:
        """Add ‖x − c‖₁ over each centre's own inputs: (N, centres), float64."""
        wide = self.cast(x, DOUBLE)
        terms = []
        for inputs, values in zip(subsets.T, centres.T, strict=True):
            seen = self("Gather", wide, inputs.astype(np.int64), axis=1)
            terms.append(self("Abs", self("Sub", seen, values)))
        return self("Sum", *terms)

    def cast(self, x: str, dtype: DType) -> str:
        """Return x as another type."""
        if self._dtypes[x] == dtype:
            return x
        name = self("Cast", x, to=self._onnx.helper.np_dtype_to_tensor_dtype(dtype))
        self._dtypes[name] = dtype
        return name

    def dtype_of(self, x: str) -> DType:
        """Return the type of a tensor."""
        return self._dtypes[x]

    def finish(
        self,
        outputs: dict[str, str],
        shape: Shape,
        name: str,
        version: str,
        metadata: dict[str, str],
    ) -> ModelProto:
        """Return the model; its outputs are tensors by their new names, all of one shape."""
        onnx, helper = self._onnx, self._onnx.helper
        for new, tensor in outputs.items():
            self._rename(tensor, new)
        infos = [self._info(new, self.dtype, shape) for new in outputs]
        proto: ModelProto = helper.make_model(
            helper.make_graph(self._nodes, name, self._inputs, infos, self._constants),
            producer_name="gorelm",
            producer_version=version,
            opset_imports=[
                helper.make_opsetid(domain, opset)
                for domain, opset in (("", OPSET), ("ai.onnx.ml", ML_OPSET))
                if not domain or any(node.domain == domain for node in self._nodes)
            ],
            ir_version=IR_VERSION,
        )
        helper.set_model_props(proto, metadata)
        onnx.checker.check_model(proto, full_check=True)
        return proto

    def _rename(self, tensor: str, new: str) -> None:
        """Give the output of a node another name."""
        if any(one.name == new for one in self._inputs):
            raise TypeError(f"two tensors of the graph would be named {new!r}: rename the column")
        for node in self._nodes:
            for names in (node.input, node.output):
                for place, name in enumerate(names):
                    if name == tensor:
                        names[place] = new

    def _info(self, name: str, dtype: DType, shape: Shape) -> ValueInfoProto:
        kind = self._onnx.helper.np_dtype_to_tensor_dtype(dtype)
        info: ValueInfoProto = self._onnx.helper.make_tensor_value_info(name, kind, shape)
        return info

    def _named(self, value: Operand, dtype: DType) -> str:
        if isinstance(value, str):
            return value
        array = np.asarray(value)
        if array.dtype.kind == "f":
            array = array.astype(dtype)
        name = f"constant/{len(self._constants)}"
        tensor = self._onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)
        self._constants.append(tensor)
        return name
