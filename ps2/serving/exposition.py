"""Metrics of an endpoint that scores, for Prometheus. See docs/serving.md."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from ps2.serving.scorer import Scorer

# Upper limits of durations.
BUCKETS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05, 0.2, 1.0)


class ScoringMetrics:
    """Counts requests, and reads what the scorer holds at each scrape."""

    def __init__(self, scorer: Scorer) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "ps2_scoring_requests", "Requests answered", ["request", "status"], registry=self._registry
        )
        self._rows = Counter("ps2_scored_rows", "Rows scored, or keys looked up", ["request"], registry=self._registry)
        self._seconds = Histogram(
            "ps2_scoring_duration_seconds",
            "Time in a request",
            ["request"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        for name, text, read in (
            ("ps2_export_number", "Number of the export in use", lambda: scorer.number),
            ("ps2_export_keys", "Keys of the export in use, with those of its deltas", lambda: scorer.keysCount),
            ("ps2_export_age_seconds", "Since the export in use was written", lambda: time.time() - scorer.writtenS),
            ("ps2_refresh_failing", "1 if the last look for a newer export failed", lambda: scorer.failure is not None),
        ):
            Gauge(name, text, registry=self._registry).set_function(read)

    def count(self, request: str, status: int, rows: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(request, str(status)).inc()
        if status == 200:
            self._rows.labels(request).inc(rows)
        self._seconds.labels(request).observe(seconds)

    def text(self) -> tuple[bytes, str]:
        """Return all metrics, and the type of their text."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
