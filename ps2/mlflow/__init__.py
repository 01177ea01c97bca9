"""MLflow: log, save and load models, and log fits automatically (extra ``mlflow``).

Names load on first use: they need the package mlflow, which is an extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from ps2.mlflow.autologging import autolog
    from ps2.mlflow.flavor import load_model, log_model, save_model

_MODULES = {
    "autolog": "ps2.mlflow.autologging",
    "load_model": "ps2.mlflow.flavor",
    "log_model": "ps2.mlflow.flavor",
    "save_model": "ps2.mlflow.flavor",
}

__all__ = ["autolog", "load_model", "log_model", "save_model"]

__getattr__, __dir__ = lazy_names(__name__, _MODULES, "MLflow")
