"""The counts in data/README.md are the data's own."""

from helpers import ROOT, data

README = (ROOT / "data" / "README.md").read_text(encoding="utf-8")


def test_counts_of_commands():
    frame = data.commands()
    for split, rows in frame.groupby("split"):
        languages = rows.language.nunique()
        line = f"| {split} | {len(rows):,} | {rows.cluster.nunique():,} | {rows.label.nunique()} | {languages} |"
        assert line in README


def test_the_count_in_the_first_readme():
    frame = data.commands()
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"all {(frame.split == 'validation').sum():,} " in text


def test_counts_of_licences():
    frame = data.licences()
    for split, rows in frame.groupby("split"):
        assert f"| {split} | {len(rows):,} | {rows.cluster.nunique():,} |" in README
    for label, rows in frame.groupby("label"):
        line = next(line for line in README.splitlines() if line.startswith(f"| {label} |"))
        assert line.endswith(f"| {len(rows):,} | {rows.cluster.nunique():,} |")
