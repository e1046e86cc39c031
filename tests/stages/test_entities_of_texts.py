"""Characters in, tags out: a tagger learns entities of running text, and finds them by the characters of the original."""

import json
from pathlib import Path

from conftest import Capsys

from bertkit import load_predictor
from bertkit.cli import run

NAMES = {"kan": "PER", "lon": "PER", "min lor": "LOC"}
AROUND = ("{} kar.", "kar  {} 💩 {}", "mir, {}e\u0301 kar\n{}", "\t{}  mir (kar)", "e\u0301 {} 👨\u200d👩\u200d👧 {}!")


def rows() -> list[dict[str, object]]:
    """Texts with names in all places, also beside signs; the accent of "kane\u0301" is a part of the name."""
    made = []
    for number, pattern in enumerate(AROUND * 6):
        text, spans = "", []
        for place, part in enumerate(pattern.split("{}")):
            if place:
                name = list(NAMES)[(number + place) % 3]
                spans.append({"start": len(text), "end": len(text + name), "label": NAMES[name]})
                text += name
                if part.startswith("e\u0301"):
                    spans[-1]["end"] += 2
            text += part
        made.append({"text": text, "entities": spans})
    return made


def test_entities_come_back_with_the_characters_of_the_original(start: Path, tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows()), encoding="utf-8")
    words = [
        "task=ner",
        "task.max_seq_length=24",
        "dev_share=0",
        "num_epochs=10",
        "optimizer.peak_learning_rate=1e-2",
        "batch.sequences=8",
        "device=cpu",
    ]
    assert run(["finetune", str(path), f"model_dir={start}", f"output_dir={tmp_path / 'run'}", *words]) == 0
    expected = [[(one["start"], one["end"], one["label"]) for one in row["entities"]] for row in rows()]  # type: ignore[attr-defined]
    predict = ["predict", f"model_dir={tmp_path / 'run'}", "device=cpu"]
    assert run([*predict, f"input={path}", f"output={tmp_path / 'out.jsonl'}"]) == 0
    predicted = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in predicted] == [row["text"] for row in rows()]
    assert [[(one["start"], one["end"], one["label"]) for one in row["entities"]] for row in predicted] == expected
    assert all(row["text"][one["start"] : one["end"]] == one["text"] for row in predicted for one in row["entities"])
    assert load_predictor(tmp_path / "run", device="cpu")([row["text"] for row in rows()]) == predicted
    # what `predict` writes can be learned from, and evaluated on
    capsys.readouterr()
    evaluate = [
        "evaluate",
        f"model_dir={tmp_path / 'run'}",
        f"task.files.test={tmp_path / 'out.jsonl'}",
        "split=test",
        "device=cpu",
    ]
    assert run(evaluate) == 0
    assert '"overall_f1": 1.0' in capsys.readouterr().out
