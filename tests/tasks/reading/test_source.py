"""What is said of the examples of a split, and a share that is held out."""

import dataclasses
from pathlib import Path

import pytest
from conftest import real_data
from task_files import SWAG_HEADER, read, rows, write

from bertkit.base.errors import InputError


def test_warnings_of_labels_are_of_the_examples_that_are_left(tmp_path: Path) -> None:
    """A sorted file, of which the first rows are trained on."""
    write(tmp_path, "train.csv", "text,label\n" + "a,bad\n" * 3 + ",good\n" * 3)
    source = read(tmp_path, "sequence", "train")
    empty = f"kept 3 examples with an empty text, the first at {tmp_path}/train.csv:5"
    assert source.warnings == (empty,)
    first = dataclasses.replace(source, examples=source.examples[:3])
    assert first.warnings == (
        empty,
        f"{tmp_path}/train.csv: every label is 'bad'; nothing can be learned from a single class",
    )


def test_labels_that_occur_once_are_named(tmp_path: Path) -> None:
    write(tmp_path, "train.csv", "text,label\na,x\nb,x\nc,once\nd,y\ne,y\n")
    (line,) = read(tmp_path, "sequence", "train").with_rare_labels().file_warnings
    assert line.startswith(f"{tmp_path}/train.csv: labels with one example alone: once; ")
    write(tmp_path, "dev.csv", "text,label\na,x\nb,y\n")  # each of them: labels that are no classes, or a tiny sample
    assert read(tmp_path, "sequence", "dev").with_rare_labels().file_warnings == ()


def test_a_share_is_held_out_by_a_hash_of_the_texts(tmp_path: Path) -> None:
    lines = [f"t{number % 499},{'ab'[number % 2]}\n" for number in range(998)]  # every text twice, with both labels
    write(tmp_path, "train.csv", "text,label\n" + "".join(lines))
    source = read(tmp_path, "sequence", "train")
    rest, held = source.hold_out(0.2)
    texts = [{row[1] for row in rows(part)} for part in (rest, held)]
    assert not texts[0] & texts[1]
    assert len(rest.examples) + len(held.examples) == 998
    assert len(held.examples) == 200
    assert held.description == f"20.0% held out of {source.description}"
    write(tmp_path, "train.csv", "text,label\n" + "".join(reversed(lines)))
    assert {row[1] for row in rows(read(tmp_path, "sequence", "train").hold_out(0.2)[1])} == texts[1]
    _, held = source.hold_out(1e-9)
    assert held.file_warnings == (
        f"dev_share=1e-09 of {tmp_path}/train.csv: 2 rows of 998 (0.2%), so that both sides have each label",
    )
    with pytest.raises(InputError, match=r"dev_share=0\.5: holds out 0 of the 1 examples"):
        dataclasses.replace(source, examples=source.examples[:1]).hold_out(0.5)


def test_near_duplicates_are_held_out_together(tmp_path: Path) -> None:
    """SST-2's training file has sentences and phrases of them; a split by text alone has them on both sides."""
    source = read(real_data("glue"), "sst2", "train")
    source = dataclasses.replace(source, examples=source.examples[:20000])
    rest, held = source.hold_out(0.1, method=None)
    assert held.num_near(rest) > 0.4 * len(held.examples)
    rest, held = source.hold_out(0.1)
    assert held.num_near(rest) == 0
    assert len(held.examples) == 2000


def test_the_label_of_f1_is_named_where_the_alphabet_chooses_it(tmp_path: Path) -> None:
    write(tmp_path, "dev.csv", "text,label\na,hate\nb,none\n")
    remark = "F1 is that of 'none'; task.labels=[none,hate] would take 'hate'"
    assert read(tmp_path, "sequence", "dev", "metrics=[f1]").describe().endswith(f"none 1 (50.0%); {remark}")
    for settings in (["metrics=[accuracy]"], ["metrics=[f1]", "labels=[none,hate]"]):
        assert "F1" not in read(tmp_path, "sequence", "dev", *settings).describe()


WARNED = [
    ("sst2", "SST-2/dev.tsv", "sentence\tlabel\na\t1\nb\t1\n", "every label is 'positive'"),
    ("qnli", "QNLI/dev.tsv", "index\tquestion\tsentence\tlabel\n0\t \tb\tentailment\n", "kept 1 example with an empty text, the first at"),
    ("mnli", "MNLI/dev.tsv", "sentence1\tsentence2\tgold_label\na\tb\tneutral\na\tb\tentailment\n", "dev.tsv: labels without an example: contradiction"),
    ("swag", "swag/val.csv", SWAG_HEADER + "0,a,1,x,s,S,gold,a,b,c,d,2\n", "every label is '2'"),
    ("conll2003", "eng.testa", "a O\n", "every label is 'O'"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "name", "text", "warning"), WARNED)
def test_suspicious_files_give_one_warning(tmp_path: Path, task: str, name: str, text: str, warning: str) -> None:
    write(tmp_path, name, text)
    source = read(tmp_path, task, "dev")
    assert sum(warning in line for line in source.warnings) == 1


def test_long_label_histogram_is_shortened(tmp_path: Path) -> None:
    write(tmp_path, "train.tsv", "text\tlabel\n" + "".join(f"x\t{n}\n" for n in range(23)))
    assert read(tmp_path, "sequence", "train").describe().endswith("19 1 (4.3%), and 3 more")


def test_the_official_folders_of_conll_are_found_by_every_task_for_entities(tmp_path: Path) -> None:
    """CoNLL-2003's eng.testa is the dev set, and is never taken for the test set."""
    names = {"train": "eng.train", "dev": "eng.testa", "test": "eng.testb"}
    for split, name in names.items():
        write(tmp_path, name, f"{split} NN I-NP I-PER\n")
    for task in ("ner", "tagging", "conll2003"):
        for split, name in names.items():
            found = read(tmp_path, task, split)
            assert [path.name for path in found.files] == [name]
            assert [example.words for example in found.examples] == [(split,)]  # type: ignore[union-attr]
    (tmp_path / "eng.testb").unlink()
    with pytest.raises(InputError, match="no test file for task=ner"):
        read(tmp_path, "ner", "test")
