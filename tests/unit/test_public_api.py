"""What users can name is as recorded: a commit that changes ``tests/public_api.json`` shows what changes for them."""

from __future__ import annotations

import json

import pytest

from tests.public_api import RECORD, public_api

# MLflow warns of hints in its own classes as it is imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*Any type hint")

RECORDED = json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def api():
    return json.loads(json.dumps(public_api()))


@pytest.mark.parametrize("name", RECORDED)
def test_public_name_when_described_then_is_as_recorded(api, name):
    assert api.get(name) == RECORDED[name], "python -m tests.public_api records a change that is meant"


def test_public_names_when_listed_then_are_recorded(api):
    assert api.keys() == RECORDED.keys()
