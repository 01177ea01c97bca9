"""MLflow: log, save and load models, and log fits by themselves (extra ``mlflow``).

Names load on first use: they need MLflow, which PS2 does not install by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ps2.errors import ConfigError
from ps2.lazy_names import lazy_names

if TYPE_CHECKING:
    from ps2.mlflow.autologging import autolog
    from ps2.mlflow.flavor import load_model, log_model, save_model

_HOME = {
    "autolog": "ps2.mlflow.autologging",
    "load_model": "ps2.mlflow.flavor",
    "log_model": "ps2.mlflow.flavor",
    "save_model": "ps2.mlflow.flavor",
}

__all__ = ["autolog", "load_model", "log_model", "save_model"]

_load, __dir__ = lazy_names(__name__, _HOME)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name != "mlflow":
            raise
        raise ConfigError(f"ps2.mlflow.{name} needs MLflow: pip install 'ps2-spark[mlflow]'") from error
