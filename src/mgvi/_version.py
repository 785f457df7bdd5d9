"""The version of the package, read by the build and by ``mgvi.__version__``."""

__version__ = "0.1.0.dev0"
