"""The version, in a module of its own: nothing in the library imports the package's root."""

__all__ = ["__version__"]

__version__ = "0.1.0"
