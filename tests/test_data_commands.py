"""Commands: what every later number rests on."""

import pytest

from helpers import data
from helpers.data.commands import LANGUAGES, ROWS_PER_BLOCK, UNKNOWN_INTENTS
from helpers.errors import InputError

FEW = dict.fromkeys(ROWS_PER_BLOCK, 3)


@pytest.fixture(scope="module")
def frame():
    return data.commands()


def test_nothing_stands_on_two_sides(frame):
    assert frame.groupby("cluster").split.nunique().max() == 1
    assert not data.normalise(frame.text).duplicated().any()


def test_a_template_stands_on_one_side(frame):
    assert frame.groupby(["language", "template"]).split.nunique().max() == 1


def test_validation_is_large_enough_to_see_a_small_loss(frame):
    assert (frame.split == "validation").sum() >= 50_000


def test_every_known_intent_is_on_every_side(frame):
    known = frame[frame.split != "unknown"]
    sides = known.groupby("label").split.nunique()
    assert len(sides) >= 30
    assert (sides == 4).all()
    assert set(frame.label[frame.split == "unknown"]) == set(UNKNOWN_INTENTS)
    assert set(known.label).isdisjoint(UNKNOWN_INTENTS)


def test_every_language_is_on_every_side(frame):
    assert set(frame.language) == set(LANGUAGES)
    assert (frame.groupby("language").split.nunique() == 5).all()


def test_nothing_of_the_template_syntax_is_left(frame):
    assert not frame.text.str.contains(r"[{}<>|\[\]]").any()


def test_slots_are_filled_in_the_sentences_language(frame):
    kitchen = data.home()["areas"]["kitchen"]["names"]
    for language in ("de", "ko", "ru", "el"):
        texts = frame.text[frame.language == language]
        assert texts.str.contains(kitchen[language], regex=False).any()
        assert not texts.str.contains(kitchen["en"], regex=False).any()


def test_names_fit_the_kind_of_device():
    frame = data.commands(languages=("en",), rows_per_block=FEW)
    named = frame[(frame.label == "HassVacuumStart") & frame.template.str.contains("{name}", regex=False)]
    vacuums = [d["names"]["en"] for d in data.home()["devices"].values() if d["domain"] == "vacuum"]
    assert len(named) and named.text.map(lambda text: any(name in text for name in vacuums)).all()


def test_the_seed_decides():
    first, again, other = (data.commands.__wrapped__(("da",), FEW, seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert not first.equals(other)


def test_home_speaks_every_language():
    home = data.home()
    named = [entry["names"] for kind in ("areas", "devices") for entry in home[kind].values()]
    for names in (*named, *home["floors"].values(), *home["phrases"].values()):
        assert set(names) == set(LANGUAGES)
    for device in home["devices"].values():
        assert device.get("area") is None or device["area"] in home["areas"]
    for area in home["areas"].values():
        assert area["floor"] in home["floors"]


def test_a_language_the_home_does_not_speak_is_refused():
    with pytest.raises(InputError, match=r"does not speak \['tlh'\]"):
        data.commands(languages=("en", "tlh"))
