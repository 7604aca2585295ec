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


MORE = "".join(f"more {label}{i},{label},x\n" for i in range(10) for label in "ab")


def test_a_spreadsheets_byte_order_mark_and_languages_are_no_trouble(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbf" + ("text,label,language\nça va,a,fr\nさようなら,b,ja\n" + MORE).encode())
    frame = data.own(path)
    assert frame.language.tolist()[:2] == ["fr", "ja"]


@pytest.mark.parametrize("blank", ["\n", "\r\n \r\n", ",\n,,,\n"])
def test_blank_lines_above_the_header_are_no_trouble(tmp_path, blank):
    frame = data.own(write(tmp_path, blank + "text,label,language\nHello,a,x\n" + MORE))
    assert frame.text.tolist() == data.own(write(tmp_path, "text,label,language\nHello,a,x\n" + MORE)).text.tolist()


def test_words_that_pandas_takes_for_missing_are_texts(tmp_path):
    path = write(tmp_path, "text,label,language\nNA,None,x\nnull,nan,x\n" + MORE)
    assert data.own(path).text.tolist()[:2] == ["NA", "null"]


def test_repeated_rows_are_dropped_and_counted(tmp_path):
    path = write(tmp_path, "text,label,language\nHello,a,x\nhello ,a,x\nbye,b,x\nso,a,x\nso,b,x\n" + MORE)
    frame = data.own(path)
    assert frame.text.tolist()[:3] == ["Hello", "bye", "more a0"]
    assert frame.attrs["dropped"] == 3


def test_a_very_long_text_is_taken(tmp_path):
    frame = data.own(write(tmp_path, "text,label,language\n" + "word " * 100_000 + ",a,x\n" + MORE))
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
        ("text,label\na,x\na,y\nb,z\n", r"has one class \('z'\)"),
        ("text,label\n\n\na,x\n\nb,\n", "column 'label' is empty in row 6"),
        ("\n\ntext,label\na,x\nb,\n", "column 'label' is empty in row 5"),
        ("\r\n\r\ntext,label\r\na,x\r\nb,\r\n", "column 'label' is empty in row 5"),
        ("\r\rtext,label\ra,x\rb,\r", "column 'label' is empty in row 5"),
        (b"\xef\xbb\xbf\n \ntext,label\na,x\nb,\n", "column 'label' is empty in row 5"),
        (",,\n,\ntext,label\na,x\n\nb,\n", "column 'label' is empty in row 6"),
        ("\n\ntext,label\na,x\nb,y,z\n", "Expected 2 fields in line 5, saw 3"),
        ("\n\ntext,class\na,x\n", "no column 'label'; found text, class"),
        ("\n\ntext,label\n", "no rows below the header"),
        ("\n,\n\n", "cannot be read"),
        ('""\n""\n', "cannot be read: all rows are blank"),
        ("text,label\na,x\nb,y\nc,x\nd,y\n", "too few texts to split: 4 clusters"),
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


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("rows", [1, 10_000, 40_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_byte_that_is_not_utf8_is_found_in_any_block_that_is_read(tmp_path, mark, rows, end):
    head = mark + b"text,label" + end + b"".join(b"a text of some words,x" + end for _ in range(rows)) + b"caf"
    assert rows < 40_000 or len(head) > 3 * 2**18
    with pytest.raises(InputError, match=rf"mine\.csv: not UTF-8 at byte {len(head)} \(line {rows + 2}\); save it"):
        data.own(write(tmp_path, head + b"\xe9,x" + end + b"more,y" + end))


@pytest.mark.parametrize("index", [range(100, 120), [f"r{n}" for n in range(20)]])
def test_a_row_of_a_parquet_file_is_counted_from_the_top(tmp_path, index):
    labels = ["a", "b"] * 10
    labels[5] = None
    path = tmp_path / "mine.parquet"
    pd.DataFrame({"text": [f"text {n}" for n in range(20)], "label": labels}, index=index).to_parquet(path)
    with pytest.raises(InputError, match="column 'label' is empty in row 7"):
        data.own(path)


@pytest.mark.parametrize(("cell", "kind"), [(["a"], "ndarray"), (b"a", "bytes"), ({"a": 1}, "dict")])
def test_a_parquet_file_of_something_else_is_refused(tmp_path, cell, kind):
    path = tmp_path / "mine.parquet"
    pd.DataFrame({"text": [cell] * 20, "label": ["a", "b"] * 10}).to_parquet(path)
    with pytest.raises(InputError, match=f"column 'text' holds {kind}, not text"):
        data.own(path)


@pytest.mark.parametrize("rows", range(2, 30))
def test_a_small_file_is_refused_or_has_what_every_side_needs(tmp_path, rows):
    text = "text,label\n" + "".join(f"text {i},{'ab'[i % 2]}\n" for i in range(rows))
    try:
        frame = data.own(write(tmp_path, text))
    except InputError as error:
        assert "too few texts" in str(error) and rows < 16
    else:
        assert (frame.groupby("split").cluster.nunique() >= 2).all() and frame.split.nunique() == 4
        assert frame.label[frame.split == "train"].nunique() == 2


def test_what_is_no_table_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        data.own(tmp_path / "absent.csv")
    with pytest.raises(InputError, match=r"ends in '\.txt'"):
        data.own(write(tmp_path, "text,label\na,b\n", "mine.txt"))
    with pytest.raises(InputError, match="cannot be read"):
        data.own(write(tmp_path, "not parquet", "mine.parquet"))
