"""The version. A separate module, because no module of the library imports the package's root."""

__all__ = ["__version__"]

__version__ = "0.1.0"
