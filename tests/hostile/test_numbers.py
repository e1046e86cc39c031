"""Numbers that no computation stands: weights, learning rates; and a directory that names code."""

import json
import shutil
from pathlib import Path

import pytest
from cases import Case, check, each
from conftest import TINY_FINETUNE, TINY_PRETRAIN
from safetensors.torch import load_file, save_file

RATE = "optimizer.peak_learning_rate=1e38"
TRAIN = ["pretrain", "data_dir={shared}/data", "output_dir=o", *TINY_PRETRAIN, "steps=3", RATE]
TUNE = ["finetune", *TINY_FINETUNE, "model_dir={shared}/pre", "data_dir={shared}/task", "output_dir=o", RATE]


@pytest.fixture(scope="module")
def large(tiny_runs: Path) -> Path:
    """Models with weights of 1e30: of a task, and pretrained."""
    for run, folder in (("fine", "large"), ("pre", "large_pre")):
        path = tiny_runs / folder / "model.safetensors"
        shutil.copytree(tiny_runs / run / "model", path.parent)
        names = ("query.weight", "key.weight")
        tensors = {name: x * 0 + 1e30 if name.endswith(names) else x for name, x in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})
        # the task goes with a run; a directory needs it said
    return tiny_runs


TASK = ["task=sequence", "task.max_seq_length=32", "model_dir={shared}/large"]
CASES = [
    Case("predictions", ["predict", *TASK, "input={shared}/task/dev.tsv", "output=-"], "not finite: its weights", code=5),
    Case("vectors", ["embed", "model_dir={shared}/large", "input=x.txt", "output=x.npy"], "not finite: its weights",
        code=5, files={"x.txt": "kan lon\n"}, kept=("x.npy.partial",)),
    Case("words at [MASK]", ["predict", "model_dir={shared}/large_pre", "input=x.txt", "output=-"], "not finite", code=5,
        files={"x.txt": "kan [MASK] lon\n"}),
    Case("the pretraining's scores", TRAIN, "mlm_loss=nan", code=5, kept=("o",), seconds=60),
    Case("the fine-tuning's scores", TUNE, "not finite", code=5, kept=("o",), seconds=60),
]  # fmt: skip


@each(CASES)
def test_results_that_are_not_finite_are_refused(case: Case, python: Path, tmp_path: Path, large: Path) -> None:
    check(case, python, tmp_path, large)


def test_verify_says_which_tensor(python: Path, tmp_path: Path, large: Path) -> None:
    words = r"not finite; the largest weights, up to 1\.0e\+30, are those of bert\.encoder\.layer\.0\.attention\.self\."
    check(Case("verify", ["verify", "model_dir={shared}/large"], words, code=1, seconds=60), python, tmp_path, large)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_directory_that_names_code(name: str, python: Path, tmp_path: Path, tiny_runs: Path) -> None:
    """Every command reads such a model as BERT, and none runs its code; verify would have transformers ask for it."""

    def model(path: Path) -> None:
        shutil.copytree(tiny_runs / "fine" / "model", path)
        content = json.loads((path / name).read_text())
        content["auto_map"] = {"AutoTokenizer": ["code.T", None], "AutoModelForSequenceClassification": "code.M"}
        (path / name).write_text(json.dumps(content))
        (path / "code.py").write_text(f"open({str(tmp_path / 'case' / 'ran')!r}, 'w')\n")

    folder = tmp_path / "case"
    folder.mkdir()
    case = Case("code", ["verify", "model_dir={here}/m"], rf"m/{name}: 'auto_map' names code", files={"m": model})
    check(case, python, folder, tiny_runs)
    assert not (folder / "ran").exists()
