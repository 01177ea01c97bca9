"""Traces without OpenTelemetry."""

from __future__ import annotations

import sys

import pytest

from ps2.coordinator.tracing import Tracing
from ps2.errors import ConfigError


def test_tracing_when_the_package_is_missing_then_names_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'ps2-spark\[tracing\]'"):
        Tracing(None, None, None)
