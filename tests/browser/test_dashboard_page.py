"""The live page in Chromium, beside real trainings."""

from __future__ import annotations

import json

import pytest
import requests

from ps2.dashboard.browser_sessions import BrowserSessions
from ps2.dashboard.page_server import PageServer
from ps2.dashboard.snapshot import to_json
from tests.browser.many import many_of_all
from tests.conftest import wait_until


@pytest.fixture
def driver(program, token_file):
    started = program("training_app.py", token_file, 0)
    return started, started.says("link")


def clocks(page):
    return page.call(
        "return Number((document.querySelector('#run td:nth-child(3)')?.innerText ?? '0').replace(',', ''))"
    )


def test_page_when_a_run_is_under_way_then_figures_move(driver, look):
    started, link = driver
    page = look(link)
    page.sees("#run", "No run yet")
    started._process.stdin.write("run 60\n")
    started._process.stdin.flush()
    page.sees("#status", "a run is under way")
    wait_until(lambda: clocks(page) > 3, "clocks on the page", 60)
    before = clocks(page)
    wait_until(lambda: clocks(page) > before, "later clocks on the page")
    page.sees("#vectors", "weight")
    page.sees("#operations", "add")
    sample = page.call(
        "const c = document.querySelector('canvas');"
        "const { data } = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
        "return data.filter((v, i) => i % 4 === 3 && v > 0).length"
    )
    assert sample > 5000
    started.says("done run")
    page.sees("#run", "the last run")
    page.sees("#history", "done")
    page.sees("#run", "60")
    assert page.complaints() == []


def test_page_when_a_server_is_killed_then_says_so(driver, look):
    started, link = driver
    page = look(link)
    page.sees("#fleet", "running")
    started.order("kill", "done kill")
    page.sees("#events", "server 1 is lost: ended by SIGKILL")
    page.sees("#fleet", "from the copies, nothing is missing")
    page.sees("#tiles", "2 of 2")


def test_page_when_a_model_is_fitted_then_shows_its_loss(driver, look):
    started, link = driver
    page = look(link)
    page.sees("#training", "No fit yet")
    started.order("fit", "done fit")
    page.sees("#training", "LogisticRegression")
    page.call("document.querySelector('#training details').open = true")
    page.sees("#training", "maxIter=12")
    wait_until(lambda: page.call("return document.querySelectorAll('#training path').length") >= 2, "charts")
    page.sees("#history", "of at most 12 steps")


def test_page_when_the_driver_is_killed_then_waits_for_the_next(driver, look, program, token_file):
    started, link = driver
    page = look(link)
    port = link.rpartition(":")[2].partition("/")[0]
    fleet = page.text("#where")
    started.kill()
    page.sees("#status", "no answer")
    page.sees("#banner", "connects again by itself")
    program("training_app.py", token_file, port).says("link")
    page.sees("#status", "live")
    assert page.text("#where") != fleet


class Shown:
    """A page of one snapshot."""

    def __init__(self, snapshot):
        self.page = PageServer(
            lambda: to_json(snapshot), lambda begin, find: b"{}", BrowserSessions("s"), ("127.0.0.1", range(1))
        )


@pytest.fixture
def shown():
    pages = []

    def show(snapshot):
        pages.append(Shown(snapshot).page)
        return pages[-1].url

    yield show
    for page in pages:
        page.stop()


def test_page_when_there_is_too_much_then_frames_stay_short(shown, look):
    snapshot = many_of_all()
    assert len(to_json(snapshot)) < 1_000_000
    page = look(shown(snapshot))
    page.sees("#vectors", "10,000 matrices")
    page.sees("#run", "468 workers not shown")
    page.sees("#fleet", "872 more servers")
    frame_ms = page.call(
        "const began = performance.now(); document.dispatchEvent(new Event('visibilitychange'));"
        "document.body.offsetHeight; return performance.now() - began"
    )
    assert frame_ms < 2000  # tens of milliseconds on a free core
    assert page.call("return document.documentElement.outerHTML.length") < 2_000_000


@pytest.mark.parametrize("width", [1280, 390])
def test_page_when_its_width_changes_then_nothing_is_cut_off(shown, look, chromium, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page = look(shown(many_of_all()))
    page.sees("#vectors", "10,000 matrices")
    assert page.call("return document.documentElement.scrollWidth") <= width
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_page_when_used_by_keyboard_then_all_is_reached(shown, look):
    page = look(shown(many_of_all()))
    page.sees("#vectors", "10,000 matrices")
    reached = page.call(
        "return [...document.querySelectorAll('a[href], button:not(:disabled), input, summary, [tabindex=\"0\"]')]"
        ".map(e => e.getAttribute('aria-label') || e.innerText).filter(Boolean)"
    )
    for name in ("Servers", "Operations", "Workers", "Matrices", "Find vectors by name or id", "Next"):
        assert any(name in one for one in reached), name


def test_page_when_opened_without_a_session_then_says_how(shown, chromium):
    link = shown(many_of_all())
    with requests.get(link, timeout=10):
        pass
    chromium.delete_all_cookies()
    chromium.get(link)
    assert "This link has been used" in chromium.find_element("css selector", "body").text
    assert json.dumps(chromium.get_cookies()) == "[]"
