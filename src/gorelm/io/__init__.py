"""Models in files, without pickle: loading a file runs no code from it."""

from gorelm.io.files import FORMAT, ModelFileError, load, save

__all__ = ["FORMAT", "ModelFileError", "load", "save"]
