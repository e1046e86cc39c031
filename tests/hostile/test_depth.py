"""Nesting and aliases without end, and files that say what they should not: one line, exit 2."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Capsys, refused

from bertkit.base.text_files import parse_json, parse_yaml
from bertkit.cli import run

DEEP = "[" * 5_000
GROWING = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))])


@pytest.mark.parametrize("text", [f"a: {DEEP}", "a: &a [*a]", GROWING])
def test_deep_or_aliased_yaml_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"deep|alias"):
        parse_yaml(text)


def test_json_deeper_than_100_is_refused() -> None:
    for text in (DEEP, "[" * 500 + "]" * 500, '{"a": ' * 101 + "1" + "}" * 101):
        with pytest.raises(ValueError, match="100 deep"):
            parse_json(text)
    assert parse_json("[" * 100 + "]" * 100)
    assert parse_json("[" + "[]," * 500 + "[]]") == [[]] * 501
    assert parse_yaml("{a: [1e-4, x], b: null}") == {"a": ["1e-4", "x"], "b": None}


@pytest.mark.parametrize("text", ["# nothing", "- a\n- b\n", "17", "1: 2", f"a: {DEEP}", "a: \xff"])
def test_hostile_experiment_files_are_refused(text: str, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_bytes(text.encode("latin-1"))
    arguments = ["pretrain", "--config-dir", str(tmp_path), "experiment=mine", "data_dir=x", "output_dir=y"]
    refused(run([*arguments]), "mine.yaml: ", capsys)
    refused(run([*arguments, "--help"]), "mine.yaml: ", capsys)


def test_deep_brackets_in_overrides_are_refused(capsys: Capsys, tmp_path: Path) -> None:
    refused(run(["pretrain", f"data.skip_steps={DEEP}"]), "data.skip_steps=[[[", capsys)
    refused(run(["pretrain", "-m", f"data.skip_steps={DEEP}"]), "data.skip_steps=[[[", capsys)
    refused(run(["pretrain", f"data.skip_steps={DEEP}{']' * 5_000}"]), "data.skip_steps=[[[", capsys)
    refused(run(["prepare", f"corpus.path='{'(' * 150}'", f"output_dir={tmp_path / 'out'}"]), "no such", capsys)


def test_deep_corpus_records_are_refused(capsys: Capsys, tmp_path: Path) -> None:
    (tmp_path / "deep.jsonl").write_text('{"text": ' + "[" * 900 + "]" * 900 + "}\n")
    refused(
        run(["prepare", f"corpus.path={tmp_path}", f"output_dir={tmp_path / 'out'}"]), "deep.jsonl:1: not JSON", capsys
    )


def at(*path: Any) -> Callable[[Any], Any]:
    def change(content: Any) -> None:
        for key in path[:-2]:
            content = content[key]
        content[path[-2]] = path[-1]

    return change


@pytest.mark.parametrize(("change", "words"), [
    (at("files", [1]), "files=[1]: expected"),
    (at("files", "../else", {"bytes": 1, "sha256": "x"}), "outside this directory"),
    (at("files", "train/sentences.bin", "bytes", "12"), "files.train/sentences.bin.bytes='12': expected a whole number"),
    (at("splits", {}), "splits.train=None"),
    (at("splits", "train", "shard_tokens", [-1]), "splits.train="),
    (at("fingerprint", 3), "fingerprint=3: expected text"),
    (at("corpus", None), "corpus=None: expected"),
    (at("statistics", {}), "no field 'statistics.unigram_entropy'"),
])  # fmt: skip
def test_hostile_manifests_are_refused(
    change: Callable[[Any], Any], words: str, prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    shutil.copytree(prepared_dir, tmp_path / "data")
    path = tmp_path / "data" / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    arguments = [f"data_dir={tmp_path / 'data'}", "model=tiny", "steps=1", f"output_dir={tmp_path / 'run'}"]
    refused(run(["pretrain", *arguments]), words, capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("file", "content", "words"), [
    ("tokenizer_config.json", {"do_lower_case": "false"}, "do_lower_case='false': expected true or false or null"),
    ("tokenizer_config.json", [1], "[1]: expected a group of values"),
    ("tokenizer_config.json", {"strip_accents": "no"}, "strip_accents='no'"),
    ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"a": "3"}}}, "model.vocab.a='3': expected a whole number"),
    ("tokenizer.json", {"model": {"type": "WordPiece", "vocab": {"a": 3}}, "normalizer": [1]}, "normalizer=[1]: expected"),
])  # fmt: skip
def test_hostile_tokenizer_files_are_refused(
    file: str, content: Any, words: str, prepared_dir: Path, tmp_path: Path, capsys: Capsys
) -> None:
    shutil.copytree(prepared_dir / "tokenizer", tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / file).write_text(json.dumps(content))
    if file == "tokenizer.json":
        (tmp_path / "tokenizer" / "vocab.txt").unlink()
    (tmp_path / "text.txt").write_text("a cat\n")
    arguments = [f"corpus.path={tmp_path / 'text.txt'}", f"tokenizer.path={tmp_path / 'tokenizer'}"]
    refused(run(["prepare", *arguments, f"output_dir={tmp_path / 'out'}"]), words, capsys)
