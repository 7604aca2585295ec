"""Wheels that are read and never installed."""

import pytest

from helpers.data.wheels import wheel
from helpers.errors import InputError


def test_a_wheel_that_is_there_is_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "some_name-1.2-py3-none-any.whl").touch()
    assert wheel("some-name==1.2", tmp_path).name == "some_name-1.2-py3-none-any.whl"


def test_a_wheel_that_cannot_be_had_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in a notebook, where pip would colour its reason
    with pytest.raises(InputError, match=r"could not download no-such-thing==1\.0: No matching distribution") as error:
        wheel("no-such-thing==1.0", tmp_path)
    assert "\n" not in str(error.value) and "\x1b" not in str(error.value)
