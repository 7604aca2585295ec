"""A reader's own file: used as it is, or refused in one line that says what and where."""

import pandas as pd
import pytest

from helpers import data
from helpers.errors import InputError

GOOD = pd.DataFrame(
    {
        "text": [f"sentence number {i}" for i in range(40)],
        "label": ["yes", "no"] * 20,
        "cluster": [i // 2 for i in range(40)],
    }
)


def write(folder, content, name="mine.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_good_file_is_taken(tmp_path, kind):
    path = tmp_path / f"mine.{kind}"
    GOOD.to_csv(path, index=False) if kind == "csv" else GOOD.to_parquet(path)
    frame = data.own(path)
    assert list(frame.columns) == ["text", "label", "language", "cluster", "template", "split"]
    assert len(frame) == 40 and frame.groupby("cluster").split.nunique().max() == 1
    assert set(frame.split) == set(data.FRACTIONS)


def test_a_spreadsheets_byte_order_mark_and_languages_are_no_trouble(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbf" + "text,label,language\nça va,a,fr\nさようなら,b,ja\n".encode())
    frame = data.own(path)
    assert frame.language.tolist() == ["fr", "ja"]


def test_words_that_pandas_takes_for_missing_are_texts(tmp_path):
    assert data.own(write(tmp_path, "text,label\nNA,None\nnull,nan\n")).text.tolist() == ["NA", "null"]


def test_repeated_rows_are_dropped_and_counted(tmp_path):
    path = write(tmp_path, "text,label\nHello,a\nhello ,a\nbye,b\nso,a\nso,b\n")
    frame = data.own(path)
    assert frame.text.tolist() == ["Hello", "bye"]
    assert frame.attrs["dropped"] == 3


def test_a_very_long_text_is_taken(tmp_path):
    frame = data.own(write(tmp_path, "text,label\n" + "word " * 100_000 + ",a\nshort,b\n"))
    assert frame.text.str.len().max() > 499_000


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("sentence,label\na,b\n", "no column 'text'; found sentence, label"),
        ("text,class\na,b\n", "no column 'label'"),
        ("text,label\na,x\n,y\n", "column 'text' is empty in row 3"),
        ("text,label\na,x\n  ,y\n", "column 'text' is empty in row 3"),
        ("text,label\na,\nb,\nc,x\n", r"column 'label' is empty in row 2 \(and 1 more\)"),
        ("text,label,cluster\na,x,1\nb,y,\n", "column 'cluster' is empty in row 3"),
        ("text,label\na,x\nb,x\n", "has one class"),
        ("text,label\na,x\na,y\n", "no rows are left"),
        ("text,label\n", "no rows below the header"),
        ("", "cannot be read"),
        ('text,label\n"a,x\n', "cannot be read"),
        ("text,label\na,x,what\n", "cannot be read|row"),
        ("text,text,label\na,b,x\n", "column 'text' stands twice"),
        (b"text,label\n\xff\xfe,x\n", "not UTF-8"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, content, line):
    with pytest.raises(InputError, match=line) as error:
        data.own(write(tmp_path, content))
    assert "\n" not in str(error.value) and "mine.csv" in str(error.value)


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        data.own(tmp_path / "absent.csv")
    with pytest.raises(InputError, match=r"ends in '\.txt'"):
        data.own(write(tmp_path, "text,label\na,b\n", "mine.txt"))
    with pytest.raises(InputError, match="cannot be read"):
        data.own(write(tmp_path, "not parquet", "mine.parquet"))
