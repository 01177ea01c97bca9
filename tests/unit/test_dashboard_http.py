"""The live page over HTTP: a real server and real streams, with snapshots that are made here."""

from __future__ import annotations

import json
import socket
import threading
import time
from itertools import pairwise

import pytest
import requests

from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.page_server import PageServer
from ps2.errors import LaunchError

TOKEN = "a-token-of-enough-characters-0123456789"


class Served:
    """A page whose snapshots count: ``made`` of them, each with ``padding`` bytes. ``asked``: for pages of vectors."""

    def __init__(self, ports=range(1), secret="secret", token=None, padding=0):
        self.made, self.asked, self.padding = 0, [], padding
        self.page = PageServer(self._snapshot, self._vectors, BrowserSessions(secret, token), ("127.0.0.1", ports))
        self.url = f"http://127.0.0.1:{self.page.port}"

    def _snapshot(self):
        self.made += 1
        return json.dumps({"number": self.made, "padding": "x" * self.padding}).encode()

    def _vectors(self, begin, find):
        self.asked.append((begin, find))
        return b"{}"

    def browser(self):
        """Return a session that has opened the link."""
        session = requests.Session()
        with session.get(self.page.url, timeout=10) as answer:
            assert answer.status_code == 200
        return session

    def cookie(self):
        """Return the header of a browser that has opened the link."""
        with self.browser() as session:
            return {"Cookie": "; ".join(f"{name}={value}" for name, value in session.cookies.items())}

    def get(self, path, session=None, **how):
        with (session or requests).get(self.url + path, timeout=10, **how) as answer:
            return answer.status_code, answer.text


@pytest.fixture(scope="module")
def served():
    running = Served()
    yield running
    running.page.stop()


def frames(answer, most):
    """Return the first so many snapshots of a stream."""
    result = []
    for line in answer.iter_lines(chunk_size=1 << 20):
        if line.startswith(b"data: {"):
            result.append(json.loads(line[6:]))
        if len(result) == most:
            return result
    return result


def test_link_when_opened_then_a_strict_cookie_lets_in(served):
    with requests.get(served.page.url, timeout=10) as answer:
        cookie = answer.headers["Set-Cookie"]
        assert answer.status_code == 200
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert served.get("/", headers={"Cookie": cookie.partition(";")[0]})[0] == 200


def test_link_when_used_then_admits_nobody_else(served):
    link = served.page.url
    assert served.page.url == link
    with requests.get(link, timeout=10) as answer:
        assert answer.status_code == 200
    with requests.get(link, timeout=10) as answer:
        assert answer.status_code == 403
        assert "print(ps.dashboardUrl)" in answer.text
    assert served.page.url != link


def test_link_of_a_token_file_when_used_then_admits_again():
    served = Served(token=TOKEN)
    try:
        assert served.page.url.endswith(f"?token={TOKEN}")
        served.browser()
        served.browser()
    finally:
        served.page.stop()


@pytest.mark.parametrize("path", ["/", "/page.js", "/events", "/vectors", "/link", "/?token=wrong", "/events?token=ö"])
def test_page_when_browser_is_unknown_then_403_with_a_sentence(served, path):
    status, text = served.get(path)
    assert status == 403
    assert "print(ps.dashboardUrl)" in text


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4070", "127.0.0.1.evil.example", ""])
def test_page_when_reached_by_another_name_then_refused(served, host):
    status, text = served.get("/", headers={**served.cookie(), "Host": host})
    assert status == 403
    assert "use its address, or localhost" in text


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:80", "[::1]:4070", "localhost"])
def test_page_when_a_tunnel_has_another_port_then_answers(served, host):
    assert served.get("/", headers={**served.cookie(), "Host": host})[0] == 200


def test_files_when_asked_then_nothing_from_elsewhere_may_run(served):
    with served.browser() as session, session.get(served.url + "/page.js", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/javascript")
        policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_request_of_another_site_when_it_comes_then_refused(served):
    status, text = served.get("/events", served.browser(), headers={"Sec-Fetch-Site": "cross-site"})
    assert (status, text) == (403, "Requests from other sites are refused.")


def test_stream_when_read_then_snapshots_follow(served):
    with served.browser() as session, session.get(served.url + "/events", stream=True, timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        first, second, third = frames(answer, 3)
    assert first["number"] < second["number"] < third["number"]


def test_snapshots_when_nobody_looks_then_none_is_made(served, until):
    with served.browser() as session, session.get(served.url + "/events", stream=True, timeout=10) as answer:
        frames(answer, 1)
    until(lambda: served.page._publisher.viewers == 0, "the viewer is gone")
    until(served.page._publisher._task.done, "snapshots end")
    created = served.made
    assert served.get("/", served.browser())[0] == 200
    assert served.made == created


def test_viewers_when_there_are_forty_then_all_get_one_snapshot(served):
    session, streams = served.browser(), []
    try:
        streams += [session.get(served.url + "/events", stream=True, timeout=20) for _ in range(40)]
        newest = [frames(answer, 1)[0]["number"] for answer in streams]
    finally:
        for answer in streams:
            answer.close()
        session.close()
    assert max(newest) - min(newest) < 5
    assert served.made < 40


def test_viewer_when_it_sleeps_then_gets_the_newest_snapshot(until):
    """It has not read for many snapshots: they are not kept for it."""
    served = Served(padding=1 << 20)
    served.page._publisher._period_s = 0.05
    try:
        with served.browser() as session, session.get(served.url + "/events", stream=True, timeout=20) as answer:
            until(lambda: served.made > 60, "snapshots while the viewer does not read")
            result = [frame["number"] for frame in frames(answer, 20)]
    finally:
        served.page.stop()
    gaps = [after - before for before, after in pairwise(result)]
    assert max(gaps) > 20  # what the system's buffers held, and then the newest one


def test_vectors_when_asked_then_page_and_text_are_passed_on(served):
    session = served.browser()
    assert served.get("/vectors?begin=100&find=w%20%C3%B6", session) == (200, "{}")
    assert served.asked[-1] == (100, "w ö")


@pytest.mark.parametrize("query", ["begin=-1", "begin=x", "begin=99999999999", f"find={'x' * 201}"])
def test_vectors_when_asked_for_nonsense_then_400(served, query):
    status, text = served.get(f"/vectors?{query}", served.browser())
    assert status == 400
    assert "expected begin=NUMBER" in json.loads(text)["error"]


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [("/nothing", 404, "GET /nothing: Not Found"), ("/link", 405, "GET /link: Method Not Allowed")],
)
def test_request_when_no_route_takes_it_then_json_says_why(served, path, status, said):
    answer = served.get(path, served.browser())
    assert (answer[0], json.loads(answer[1])) == (status, {"error": said})


def test_page_when_asked_for_a_link_then_it_lets_another_in(served):
    with served.browser() as session, session.post(served.url + "/link", timeout=10) as answer:
        link = answer.text
    with requests.get(link, timeout=10) as answer:
        assert answer.status_code == 200


def test_page_when_port_is_taken_then_takes_the_next_free_one():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = Served(range(port, port + 1))
        try:
            assert served.page.port != port
            assert f"(port {port} is in use)" in served.page.description
        finally:
            served.page.stop()


def test_page_when_host_is_not_here_then_says_so():
    with pytest.raises(LaunchError, match=r"the live page cannot listen at 192\.0\.2\.77"):
        PageServer(bytes, lambda begin, find: b"", BrowserSessions("s"), ("192.0.2.77", range(1)))


def test_page_when_stopped_then_streams_end_and_nothing_is_left():
    before = threading.active_count()
    served = Served()
    with served.browser() as session, session.get(served.url + "/events", stream=True, timeout=10) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith(b"retry: ")
        began_s = time.monotonic()
        served.page.stop()
        rest = list(lines)
    assert b"event: end" in rest
    assert time.monotonic() - began_s < 4
    assert threading.active_count() == before
    socket.create_server(("127.0.0.1", served.page.port)).close()


def test_session_when_the_page_comes_back_then_is_still_valid():
    """A notebook that stops its context and makes another one: an open page goes on."""
    first = Served()
    session = first.browser()
    first.page.stop()
    second = Served(range(first.page.port, first.page.port + 1))
    try:
        assert second.get("/", session)[0] == 200
    finally:
        second.page.stop()


def test_session_when_another_driver_listens_then_is_not_valid():
    first = Served(secret="one")
    session = first.browser()
    first.page.stop()
    second = Served(range(first.page.port, first.page.port + 1), secret="another")
    try:
        assert second.get("/", session)[0] == 403
    finally:
        second.page.stop()


def test_page_when_nobody_came_then_no_server_was_imported():
    served = Served()
    assert served.page._server is None
    served.page.stop()
    assert served.page._server is None
