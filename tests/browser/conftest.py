"""A real browser, and programs whose live page it opens."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from ps2.config import new_token, write_token
from tests.conftest import wait_until

HERE = os.path.dirname(__file__)


@pytest.fixture(scope="session")
def chromium():
    """Start browsers; ``PS2_CHROMIUM`` names the programs, as scripts/chromium prints them."""
    program, _, driver = os.environ["PS2_CHROMIUM"].partition(":")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


class Looking:
    """A browser at a page."""

    def __init__(self, browser, link):
        self.browser = browser
        browser.get_log("browser")  # of the page before
        browser.get(link)
        self.sees("#status", "live")

    def text(self, selector):
        return self.browser.execute_script(f"return document.querySelector({selector!r})?.innerText ?? ''")

    def sees(self, selector, words, deadline_s=40.0):
        wait_until(lambda: words in self.text(selector), f"{words!r} in {selector}: {self.text(selector)}", deadline_s)

    def call(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def complaints(self):
        """Return what the browser complains of: errors of scripts, and what the policy forbids."""
        result = self.browser.get_log("browser")
        return [one["message"] for one in result if "favicon" not in one["message"] and "ERR_" not in one["message"]]


@pytest.fixture
def look(chromium):
    return lambda link: Looking(chromium, link)


class Program:
    """A program of this folder, which reads orders from its input and says what it has done."""

    def __init__(self, name, *arguments):
        command = [sys.executable, os.path.join(HERE, name), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def order(self, what, answer):
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self.says(answer)

    def says(self, words):
        """Return the rest of the line that begins with these words."""
        for line in self._process.stdout:
            if line.startswith(words):
                return line.removeprefix(words).strip()
        raise AssertionError(f"the program has ended without {words!r}")

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def program():
    started = []

    def start(*arguments):
        started.append(Program(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    write_token(path, new_token())
    return path
