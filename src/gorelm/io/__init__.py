"""Models in files, without pickle: loading one runs nothing that is in it."""

from gorelm.io.files import FORMAT, ModelFileError, load, save

__all__ = ["FORMAT", "ModelFileError", "load", "save"]
