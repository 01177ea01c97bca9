"""The version, on its own: what asks for it needs nothing of the face."""

__version__ = "0.1.0"
