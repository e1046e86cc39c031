"""Nothing is taken from the environment into what a command writes, and nothing is sought in the network unasked."""

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from cases import Case, check, each
from conftest import TINY_FINETUNE, TINY_PRETRAIN
from pyarrow.parquet import write_table

from bertkit.base import hub_ids
from bertkit.base.errors import InputError
from bertkit.data.texts.parquet import parquet_records

CANARY = "canary-7f3a"
TAKES = "# x\nhidden_act: ${oc.env:CANARY}\n"
IN_A_GROUP = ["pretrain", "--config-dir", "{here}/mine", "output_dir=o", "data_dir={shared}/data", *TINY_PRETRAIN]
WHERE = {"environment": {"CANARY": CANARY}, "words": r"environment variables"}


CASES = [
    Case("a group", [*IN_A_GROUP, "optimizer=evil"], files={"mine/optimizer/evil.yaml": "name: ${oc.env:CANARY}\n"},
        **WHERE),  # type: ignore[arg-type]
    Case("an override", ["pretrain", "data_dir=${oc.env:CANARY}", "output_dir=o"], **WHERE),  # type: ignore[arg-type]
    Case("help of a group", ["pretrain", "--config-dir", "{here}/mine", "model=evil", "--help"],
        files={"mine/model/evil.yaml": TAKES}, **WHERE),  # type: ignore[arg-type]
    Case("the composed configuration", ["pretrain", "--cfg", "job", *IN_A_GROUP[1:], "masking=evil"],
        files={"mine/masking/evil.yaml": "probability: ${oc.env:CANARY}\n"}, **WHERE),  # type: ignore[arg-type]
    Case("a list of defaults", ["pretrain", "--config-dir", "{here}/mine", "experiment=evil", "output_dir=o", "data_dir=d"], environment={"CANARY": CANARY},
        words="cannot compose", files={"mine/experiment/evil.yaml":
        "# @package _global_\ndefaults:\n  - override /model: ${oc.env:CANARY}\n"}),
    Case("the time", [*IN_A_GROUP, "experiment=evil"], words=r"\$\{now:\.\.\.\}",
        files={"mine/experiment/evil.yaml": "# @package _global_\nseed: ${now:%Y}\n"}),
    Case("decoded text", [*IN_A_GROUP, "experiment=evil"], words=r"\$\{oc\.decode:\.\.\.\}",
        files={"mine/experiment/evil.yaml": "# @package _global_\nseed: ${oc.decode:'7'}\n"}),
]  # fmt: skip


@each(CASES)
def test_no_interpolation_of_the_environment(case: Case, python: Path, tmp_path: Path, tiny_runs: Path) -> None:
    check(case, python, tmp_path, tiny_runs)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or CANARY not in path.read_text(errors="replace")


def test_without_a_network_a_hub_id_fails_at_once(tmp_path: Path, python: Path, tiny_runs: Path) -> None:
    """The proxy, and the hub itself, do not answer; torch is not imported for that, and nobody tries again."""
    for name, variables in (
        ("nobody listens", {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}),
        ("nobody answers", {"HF_ENDPOINT": "https://192.0.2.1", "HTTPS_PROXY": "", "https_proxy": ""}),
        ("no such host", {"HF_ENDPOINT": "https://hub.invalid", "HTTPS_PROXY": "", "https_proxy": ""}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        environment = {**variables, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "none")}
        arguments = ["predict", "model_dir=someone/bert", "input=-", "output=-"]
        case = Case(name, arguments, "no hub model that is cached or can be downloaded", environment=environment)
        began = time.monotonic()
        check(case, python, folder, tiny_runs)
        assert time.monotonic() - began < hub_ids.TIMEOUT_SECONDS + 5  # of a loaded machine; 1.3 s by itself


def test_parquet_is_read_as_it_is(tmp_path: Path) -> None:
    """With the names that `datasets` stores for numbered labels; in batches; damaged files are refused."""
    features = {"label": {"names": ["bad", "good"], "_type": "ClassLabel"}, "text": {"dtype": "string"}}
    features["tags"] = {"feature": {"names": ["O", "B"], "_type": "ClassLabel"}, "_type": "List"}
    table = pa.table({"text": ["a"] * 3000, "label": [1] * 3000, "tags": [[0, 1]] * 3000})
    noted = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    write_table(table.replace_schema_metadata(noted), tmp_path / "x.parquet")
    names, records = parquet_records(tmp_path / "x.parquet")
    assert names == {"label": ["bad", "good"], "tags": ["O", "B"]}
    assert list(records) == [{"text": "a", "label": 1, "tags": [0, 1]}] * 3000
    for note in (b"[]", b"{", b'{"info": {"features": {"a": 3}}}', b"\xff"):
        write_table(table.replace_schema_metadata({b"huggingface": note}), tmp_path / "y.parquet")
        assert parquet_records(tmp_path / "y.parquet")[0] == {}
    data = (tmp_path / "x.parquet").read_bytes()
    for broken in (b"", b"PAR1", data[:-9], data[:100] + bytes(50) + data[150:]):
        (tmp_path / "x.parquet").write_bytes(broken)
        with pytest.raises(InputError, match=r"x\.parquet: not readable as parquet"):
            list(parquet_records(tmp_path / "x.parquet")[1])


def test_local_files_need_no_home(python: Path, tmp_path: Path, tiny_runs: Path) -> None:
    """Parquet and JSON of a task: no cache is written, and none could be."""
    (tmp_path / "home").write_text("no folder")
    folder = tmp_path / "case"
    folder.mkdir()

    def parquet(path: Path) -> None:
        write_table(pa.table({"text": ["kan lon", "mir"] * 8, "label": ["a", "b"] * 8}), path)

    rows = json.dumps([{"text": "kan lon", "label": "a"}, {"text": "mir", "label": "b"}])
    arguments = ["finetune", *TINY_FINETUNE, "model_dir={shared}/pre", "data_dir={here}", "output_dir=o"]
    files = {"train.parquet": parquet, "dev.json": rows}
    home = {"HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "home" / "hf")}
    case = Case("no home", arguments, "model: ", code=0, files=files, environment=home, kept=("o",), seconds=60)
    check(case, python, folder, tiny_runs)
    assert os.listdir(tmp_path) == ["home", "case"] or sorted(os.listdir(tmp_path)) == ["case", "home"]
