"""Fitted models as ONNX graphs, for runtimes other than Python."""

from gorelm.onnx.export import export_onnx, to_onnx

__all__ = ["export_onnx", "to_onnx"]
