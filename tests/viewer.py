"""A browser without a screen."""

from __future__ import annotations

import json

import requests


class Viewer:
    """Has opened the link of a live page; ``see`` reads snapshots until one is as wanted."""

    def __init__(self, link):
        self.url, self._session = link.partition("?")[0], requests.Session()
        # The page's server closes a connection that is idle for 5 s, perhaps in the moment in which a request begins. A
        # browser then asks again.
        self._session.headers["Connection"] = "close"
        with self._session.get(link, timeout=10) as answer:
            assert answer.status_code == 200

    def see(self, wanted, most=30):
        with self._session.get(self.url + "events", stream=True, timeout=10) as answer:
            for line in answer.iter_lines(chunk_size=1 << 20):
                if line.startswith(b"data: {") and wanted(result := json.loads(line[6:])):
                    return result
                most -= line.startswith(b"data: {")
                assert most, "no such snapshot"
        raise AssertionError("the stream has ended")

    def vectors(self, **query):
        with self._session.get(self.url + "vectors", params=query, timeout=10) as answer:
            return answer.json()

    def close(self):
        self._session.close()
