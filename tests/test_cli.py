"""The command line: help, refusals, exit codes; bad input gets one line and leaves nothing behind."""

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import Capsys, make_text, output_of, refused, small_model, write_text

from bertkit import export_model, load_tokenizer
from bertkit.base.typed_settings import at, build, conf_dir
from bertkit.cli import run
from bertkit.commands import COMMANDS
from bertkit.settings.reading.compose import compose
from bertkit.settings.reading.names import schema_of

TINY = ["model=tiny", "model.hidden_size=32", "model.intermediate_size=64", "segments.max_seq_length=32"]


def test_help_says_what_each_command_needs_and_gives_without_heavy_imports() -> None:
    code = (
        "import sys; from bertkit.cli import run\n"
        "codes = [run([]), run(['--help']), *(run([command, '--help']) for command in "
        f"{list(COMMANDS)})]\n"
        "heavy = {'torch', 'hydra', 'numpy', 'transformers', 'yaml'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy or any(codes) else 0)"
    )
    output = output_of([sys.executable, "-c", code])
    assert output.count("Needs:") == output.count("Gives:") == len(COMMANDS) == 14


@pytest.mark.parametrize("command", ["finetune", "pretrain", "predict", "prepare", "serve"])
def test_help_shows_the_usual_settings_first(command: str, capsys: Capsys) -> None:
    """At most ten, each a setting of the command; `all` shows every setting."""
    assert run([command, "--help"]) == 0
    short = capsys.readouterr().out
    settings = re.findall(r"^  ([a-z_.]+)=", short.split("\nusual settings:\n")[1], re.MULTILINE)
    assert 7 <= len(settings) <= 10
    assert len(re.findall(rf"^  (?:bertkit {command}|curl) ", short, re.MULTILINE)) in (3, 4)
    assert len(short.splitlines()) <= 40
    assert not re.search("decoder|vocab_size" if command == "finetune" else "decoder", short)
    assert run([command, "--help", "all"]) == 0
    everything = capsys.readouterr().out
    assert len(everything) > len(short)
    assert [name for name in settings if not re.search(rf"[ .]{name.split('.')[-1]}: ", everything)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_that_help_shows_can_be_typed(command: str, capsys: Capsys) -> None:
    assert run([command, "--help", "all"]) == 0
    shown = dict(re.findall(r"^ +([a-z_0-9.]+): (?!\?)(.*?)(?:  # .*)?$", capsys.readouterr().out, re.MULTILINE))
    assert len(shown) >= 1
    if "segments" in shown:
        shown["segments"] = "google"  # which prepare shows below
    required = [word for word in GIVEN[command] if word.partition("=")[0] not in shown]
    compose(command, [*required, *(f"{name}={value}" for name, value in shown.items())])


def test_help_may_be_cut_short() -> None:
    """As by `head -1`: no traceback, and the exit code of a closed pipe."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-m", "bertkit", "pretrain", "--help"], stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_help_of_prepare_shows_the_instances_it_makes(capsys: Capsys) -> None:
    assert run(["prepare", "--help", "all"]) == 0
    printed = capsys.readouterr().out
    assert "\nsegments= google\n" in printed
    assert "segments.dupe_factor: 10" in printed
    assert "full_sentences" not in printed


def test_the_help_of_an_experiment_is_its_file(capsys: Capsys) -> None:
    assert run(["pretrain", "--help", "experiment=quickstart"]) == 0
    assert "\n  # A tiny BERT in a minute" in (printed := capsys.readouterr().out)
    assert "\n  steps: 2400\n  model:\n" in printed


def test_a_misspelt_key_is_refused_before_torch_is_imported() -> None:
    code = (
        "import sys; from bertkit.cli import run\n"
        "code = run(['pretrain', 'model.hiden_size=3', 'data_dir=x', 'output_dir=y'])\n"
        "sys.exit(10 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: unknown key 'model.hiden_size'; did you mean 'hidden_size'?\n")


PREPARE, PRETRAIN = "prepare corpus.path=x output_dir=y", "pretrain data_dir=x output_dir=y"
GLUE = "glue model_dir=x output_dir=y"
REFUSED = [  # a command; the setting and value that its error names, and the remedy
    ("pretrian", "'pretrian'; did you mean 'pretrain'?"),
    ("pretrain --wat", "--wat"),
    ("pretrain model=tinny", "model=tinny; did you mean 'tiny'?"),
    ("pretrain masking=every", "masking=every (one of bert, ngram, whole_word, or a plug-in whose module is in plugins=)"),
    ("pretrain batch.sequenses=3", "'batch.sequenses'; did you mean 'sequences'?"),
    ("pretrain stpes=3", "'stpes'; did you mean 'steps'?"),
    ("pretrain steps", "'steps': expected key=value"),
    ("verify model_dir model_dir=x", "'model_dir': expected key=value"),
    ("index books output=x", "'books': expected key=value or group=option, such as output=runs/mine"),
    ("predict great model_dir=x", "for a text of one word write text=great"),
    ("pretrain seed=1,2", "write seed=[1,2] for a list, or add -m"),
    ("pretrain model=[tiny,mini]", "model= takes a name (one of albert_mini, base"),
    ("finetune task=mprc model_dir=x output_dir=y", "task=mprc; did you mean 'mrpc'?"),
    ("finetune model_dir=x output_dir=y", "set task= (for your own data classification, "),
    ("pretrain model=null", "'model=null': model= takes a name (one of albert_mini, base"),
    ("pretrain hydra.run.dir=x", "'hydra.run.dir'"),
    ("prepare corpus=python_docs corpus.path=x output_dir=y", "corpus=python_docs"),
    ("pretrain data_dir=x", "set output_dir="),
    (f"{PRETRAIN} steps=many", "steps='many': expected a whole number"),
    (f"{PRETRAIN} precision=fp8", "precision='fp8': expected fp32 or bf16 or fp16"),
    (f"{PRETRAIN} steps=10000 schedule.warmup_steps=20000", "schedule.warmup_steps=20000 exceeds steps=10000"),
    (f"{PRETRAIN} model.hidden_size=31", "hidden_size=31"),
    (f"{PRETRAIN} segments.max_seq_length=600", "max_seq_length=600 exceeds the model's max_position_embeddings=512; lower segments.max_seq_length"),
    ("pretrain data_dir=no/such output_dir=y", "data_dir=no/such: no such directory"),
    (f"{PREPARE} masking.whole_word=true", "masking: "),
    (f"{PREPARE} seed=1 dump=z", "seed, dump: "),
    (f"{PREPARE} segments=pairs", "segments=pairs: "),
    (f"{PREPARE} segments=google held_out_prob=0.1", "held_out_prob=0.1: has no effect with segments=google"),
    (f"{PREPARE} segments=google masking.mask_prob=0.9", "masking.mask_prob=0.9"),
    (f"{PREPARE} segments=google segments.dup_factor=3", "'segments.dup_factor'; did you mean 'dupe_factor'?"),
    ("pretrain segments.dupe_factor=3", "'segments.dupe_factor'"),
    ("pretrain optimizer.name=lamb", "choose optimizer=lamb"),
    ("pretrain segments.kind=full_sentences", "choose segments=full_sentences"),
    (f"{PREPARE} masking=ngram", "masking: "),
    (f"{PREPARE} segments=google masking=ngram", "masking=ngram: segments=google"),
    (f"{PRETRAIN} masking=whole_word masking.options.max_ngram=2", "unknown key 'masking.options.max_ngram'"),
    (f"{PRETRAIN} masking.max_ngram=x", "masking.options.max_ngram='x': expected a whole number"),
    (f"{PRETRAIN} segments=full_sentences next_sentence=sop", "segments.next_sentence=sop: segments=full_sentences"),
    (f"{PRETRAIN} segments=google next_sentence=none", "'segments.next_sentence=none': "),
    (f"{PRETRAIN} next_sentence=sod", "segments.next_sentence='sod': expected nsp or sop or none"),
    ("pretrain next_sentence=sop segments.next_sentence=none", "next_sentence=sop and segments.next_sentence=none: "),
    ("pretrain next_sentense=sop", "'next_sentense'; did you mean 'segments.next_sentence'?"),
    ("prepare next_sentence=sop", "'segments.next_sentence': "),
    ("finetune task=mrpc next_sentence=sop", "unknown key 'next_sentence'"),
    ("prepare segments.dupe_factor=3", "'segments.dupe_factor': prepare stores tokens only; add segments=google"),
    ("prepare segments=null output_dir=y", "set corpus.path="),
    ("prepare corpus.path= output_dir=y", "set corpus.path="),
    (f"{PREPARE} shard=5/4 tokenizer.path=z", "shard=5/4: "),
    (f"{PREPARE} shard=one tokenizer.path=z", "shard='one': expected i/n with i from 1 to n, such as 1/4"),
    (f"{PREPARE} shard=2", "shard=2: expected i/n with i from 1 to n, such as 1/4"),
    (f"{PREPARE} shard=1/4", "set tokenizer.path="),
    (f"{PREPARE} shard=1/4 tokenizer.path=z segments=google", "shard=1/4: segments=google"),
    ("prepare merge=[] output_dir=y", "merge=[]: "),
    ("prepare merge=[a,b] output_dir=y shard_tokens=5", "shard_tokens: has no effect with merge="),
    ("prepare output_dir=y", "set corpus.path="),
    ("prepare corpus.path=no/such.txt output_dir=y", "corpus.path=no/such.txt: "),
    ("export checkpoint=no/such output_dir=y", "no/such: no such directory"),
    ("glue model_dir=x tasks=[mrpc]", "set output_dir="),
    (f"{GLUE} tasks=[mrcp]", "'mrcp' is not a GLUE task; did you mean 'mrpc'?"),
    (f"{GLUE} tasks=[squad1]", "'squad1' is not a GLUE task"),
    (f"{GLUE} tasks=[ax]", "add mnli"),
    (f"{GLUE} seeds=[1,1]", "seeds=[1, 1]: "),
    (f"{GLUE} seed=1", "set seeds=[...]"),
    (f"{GLUE} num_epoch=1", "'num_epoch'; did you mean 'num_epochs'?"),
    (f"{GLUE} data_dir=no/such", "data_dir=no/such: no such directory"),
    ("glue check=x.zip seeds=[1] output_dir=y", "output_dir=y: has no effect with check="),
    ("glue check=x.zip", "x.zip: "),
    ("verify model_dir=no/such", "no/such: no such directory"),
    ("finetune task=sentiment model_dir=x output_dir=y", "task=sentiment; here it is task=classification"),
    ("finetune task={a:b} model_dir=x output_dir=y", "task= takes a name (for your own data classification, "),
    ("finetune no.csv task=sequence model_dir=x output_dir=y", "error: no.csv: no such file"),
    ("finetune no.csv --text review", "error: no.csv: no such file"),
    ("predict my/no.csv model_dir=x", "error: my/no.csv: no such file"),
    ("pretrain /dev/null", "/dev/null: bertkit pretrain cannot use it (it needs: prepared dataset); see bertkit pretrain --help"),
    ("finetune task=sequence per_device_train_batch_size=7", "batch.micro_sequences=7; the global batch is batch.sequences"),
    ("pretrain data_dir=x --per_device_train_batch_size 7", "batch.micro_sequences=7; the global batch is batch.sequences"),
    ("predict --label stars model_dir=x", "unknown option --label"),
    ("finetune no.csv --lable stars", "unknown option --lable; did you mean '--label'?; see bertkit finetune --help"),
    ("finetune --num-epoch 3", "unknown option --num-epoch; did you mean '--num_epochs'?"),
    ("export --output y model_dir=no/such", "no/such: no such directory"),
    ("finetune --text", "--text: expected one argument"),
    (f"{PRETRAIN} plugins=csv.py", "have no module csv.py; write it without .py"),
    (f"{PRETRAIN} plugins=nowhere", "have no module nowhere; start in its folder, or add that to PYTHONPATH"),
    ("finetune task=sequence label=99999999999 model_dir=x data_dir=y output_dir=z", "error: label=99999999999: expected at most"),
    ("predict text=a model_dir=x output=y.xlsx", "output=y.xlsx: expected a name that ends in .jsonl, "),
    ("predict input=no.csv model_dir=x", "input=no.csv: no such file"),
    ("finetune task=sequence task.separator=ab model_dir=x output_dir=y", "task.separator='ab': expected one character"),
    ("finetune task=sequence task.encoding=utf-32 model_dir=x output_dir=y", "task.encoding=utf-32: "),
    ("pretrain positions=rotry", "'positions'; here it is attention.positions=rotry"),
    ("pretrain --positions rotry", "'positions'; here it is attention.positions=rotry"),
    ("pretrain --trackers wandb", "unknown option --trackers; here it is log.trackers=wandb"),
    ("finetune --keep-last 9", "unknown option --keep-last; here it is checkpoint.keep_last=9"),
    ("pretrain masking.rate=0.2", "'masking.rate'; masking has only 'kind', 'probability', 'mask_prob', 'random_prob'"),
    ("finetune task=mrpc masking_rate=0.2", "pass masking.probability=0.2 to bertkit pretrain, whose output_dir is model_dir= here"),
    ("embed output_dir=x.txt model_dir=x input=y", "output=x.txt: expected a name that ends in .npy"),
    ("finetune batch=32 task=sst2 model_dir=x output_dir=y", "'batch=32': batch has settings of its own, 'sequences', 'micro_sequences', "),
    ("finetune checkpoint={every:3} task=sst2 model_dir=x output_dir=y", "unknown key 'checkpoint.every'; checkpoint has only 'keep_last', "),
    ("prepare input=no.txt output_dir=x", "corpus.path=no.txt: no such file"),
    ("pretrain data_dir=x lr=3 optimizer.peak_learning_rate=4", "set optimizer.peak_learning_rate= once"),
    ("eval model_dir=x", "unknown command 'eval'; here it is bertkit evaluate; see"),
    ("tokenize x", "unknown command 'tokenize'; here it is bertkit prepare; see"),
    ("examples/run_mlm.py x", "here it is bertkit pretrain; see"),
    ("push runs/mini", "unknown command 'push'; bertkit uploads nothing; "),
    ("pretrain trackers=wandb", "'trackers'; here it is log.trackers=wandb"),
    ("pretrain logging.trackers=wandb", "'logging.trackers'; did you mean 'log.trackers'?"),
    ("pretrain every_steps=9", "here it is checkpoint.every_steps=9 or evaluation.every_steps=9 or log.every_steps=9"),
    ("finetune task=mrpc model.hidden_dropout_prob=0", "'model.hidden_dropout_prob': only for decoder=transformer"),
    ("pretrain STEPS=9", "'STEPS'; did you mean 'steps'?"),
    (f"{PRETRAIN} log.trackers=tensorbord", "unknown tensorbord; did you mean 'tensorboard'?"),
    (f"{GLUE} tasks=mrcp", "'mrcp' is not a GLUE task; did you mean 'mrpc'?"),
    ("prepare --config-dir no/such", "--config-dir no/such: no such directory"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "line"), REFUSED)
def test_refused_commands_print_one_line_and_write_nothing(
    command: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(run(command.split()), line, capsys, alone=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("words", "missing"), [
    ([], ["task", "output_dir", "model_dir"]),
    (["task=classification"], ["output_dir", "model_dir", "data_dir"]),
    (["task=classification", "output_dir=x"], ["model_dir", "data_dir"]),
    (["task=classification", "data_dir=x"], ["output_dir", "model_dir"]),
    (["task=translation", "output_dir=x"], ["decoder", "data_dir"]),
    (["task=cola"], ["output_dir", "model_dir"]),
])  # fmt: skip
def test_all_missing_settings_come_at_once(words: list[str], missing: list[str], capsys: Capsys) -> None:
    assert run(["finetune", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.removeprefix("error: missing value: set ").partition("=")[0] for line in lines] == missing


def test_all_configuration_errors_come_at_once(capsys: Capsys) -> None:
    assert run(["pretrain", "data_dir=x", "steps=-1", "seed=text", "batch.sequences=0"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4, lines


WRONG = {  # every wrong setting, also where the task is missing or wrong; a command, and the places of its errors
    "finetune optim.lr=3 epoch=2 task=sentiment": ["'optim.lr'", "'epoch'", "task=sentiment"],
    "finetune wat=3 task.columns.text=a task.wat=1": [
        "set task=",
        "set output_dir=",
        "set model_dir=",
        "'wat'",
        "'task.wat'",
    ],
    "finetune --wat 3 --wit 1": ["--wat", "--wit"],
}


@pytest.mark.parametrize("command", WRONG)
def test_all_wrong_names_come_at_once(command: str, capsys: Capsys) -> None:
    assert run(command.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [place for place, line in zip(WRONG[command], lines, strict=True) if place not in line] == [], lines


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("view m a.csv", {"model_dir": "m", "input": "a.csv"}),
        ("index a.csv output=x.db", {"corpus.path": "a.csv"}),
        ("evaluate a.csv m", {"model_dir": "m", "task_changes.files.dev": "a.csv"}),
        ("predict m a.csv --text-pair b", {"model_dir": "m", "input": "a.csv", "text_pair": "b"}),
        ("predict m 'so good, it is'", {"model_dir": "m", "text": "so good, it is"}),
        ("predict m --text 'the cat' --pair 'a dog'", {"model_dir": "m", "input": None, "text": "the cat", "text_pair": "a dog"}),
        ("predict m a.csv --text review", {"input": "a.csv", "text": None, "task_changes.columns.text": "review"}),
        ("predict m --text review --input -", {"input": "-", "task_changes.columns.text": "review"}),
        ("predict -- model_dir=m text=kan --output -o.jsonl", {"model_dir": "m", "text": "kan", "output": "-o.jsonl"}),
        ("predict m text=kan output=~/o.jsonl", {"output": str(Path.home() / "o.jsonl")}),
        ("export m output_dir=~", {"output_dir": str(Path.home())}),
        ("search l.db 'what is it?'", {"index": "l.db", "question": "what is it?"}),
        ("serve m --port 9", {"model_dir": "m", "port": 9}),
        ("export m output_dir=x --license mit", {"model_dir": "m", "license": "mit"}),
        ("pretrain d output_dir=x --lr 3e-4 --fp16", {"data_dir": "d", "optimizer.peak_learning_rate": 3e-4, "precision": "fp16"}),
        ("finetune a.csv model_dir=m output_dir=x --epochs=7 --overwrite task=sequence text=t", {
            "num_epochs": 7, "overwrite": True, "task.columns.text": "t", "task.files.train": "a.csv"}),
    ],
)  # fmt: skip
def test_files_models_and_options_are_settings(
    words: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    for name in ("m", "d"):
        (tmp_path / name).mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "d" / "manifest.json").write_text("{}")  # of a prepared dataset
    (tmp_path / "l.db").write_text("")
    assert run([*shlex.split(words), "--cfg", "job"]) == 0
    composed = yaml.safe_load(capsys.readouterr().out)
    for key, value in settings.items():
        actual = at(composed, key)
        assert actual == (str(tmp_path / value) if ".files." in key else value), key


def test_a_vocabulary_without_mask(tmp_path: Path, capsys: Capsys) -> None:
    text = write_text(tmp_path / "text.txt", make_text(3))
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\n")
    arguments = [f"corpus.path={text}", f"tokenizer.path={vocab}", f"output_dir={tmp_path / 'out'}"]
    refused(run(["prepare", *arguments]), "vocabulary of 6 tokens has no [MASK]", capsys)
    assert not (tmp_path / "out").exists()


def test_a_model_with_another_vocabulary(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    tokenizer = load_tokenizer(prepared_dir)
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{token}\n" for token in [*tokenizer.vocab, "onemore"]))
    export_model(small_model(tokenizer.vocab_size + 1), load_tokenizer(vocab), tmp_path / "model")
    arguments = [f"data_dir={prepared_dir}", f"init_from={tmp_path / 'model'}", f"output_dir={tmp_path / 'run'}"]
    refused(run(["pretrain", *arguments, "segments.max_seq_length=32"]), f"of {tokenizer.vocab_size + 1}", capsys)
    assert run(["evaluate", f"model_dir={tmp_path / 'model'}", f"data_dir={prepared_dir}"]) == 2
    assert "max_position_embeddings=41" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_output_directory_that_holds_something_else(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    text = write_text(tmp_path / "text.txt", make_text(3))
    for arguments in (
        ["prepare", f"corpus.path={text}"],
        ["pretrain", f"data_dir={prepared_dir}", *TINY],
        ["export", f"checkpoint={prepared_dir}"],
    ):
        assert run([*arguments, f"output_dir={tmp_path / 'mine'}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_damaged_data_is_refused(prepared_dir: Path, tmp_path: Path, capsys: Capsys) -> None:
    shutil.copytree(prepared_dir, tmp_path / "data")
    shard = tmp_path / "data" / "train" / "tokens-00000.bin"
    content = bytearray(shard.read_bytes())
    content[11] ^= 1
    shard.write_bytes(content)
    arguments = ["pretrain", f"data_dir={tmp_path / 'data'}", f"output_dir={tmp_path / 'run'}", *TINY]
    refused(run(arguments), "train/tokens-00000.bin ", capsys)
    assert not (tmp_path / "run").exists()


GIVEN = {
    "prepare": ["corpus.path=x", "output_dir=y"],
    "pretrain": ["data_dir=x", "output_dir=y"],
    "finetune": ["task=sequence", "model_dir=x", "output_dir=y"],
    "predict": ["model_dir=m", "input=x", "output=y"],
    "embed": ["model_dir=m", "input=x", "output=y.npy"],
    "view": ["model_dir=x", "text=y", "output=z.html"],
    "serve": ["model_dir=x"],
    "index": ["corpus.path=x", "output=y.db"],
    "search": ["index=x.db", "question=y"],
    "glue": ["model_dir=x", "output_dir=y"],
    "evaluate": ["model_dir=x", "data_dir=y"],
    "export": ["checkpoint=x", "output_dir=y"],
    "verify": ["model_dir=x"],
    "compare": ["runs/a", "runs/b"],
}


def every_choice() -> list[tuple[str, str]]:
    """Each option of each group, with every command that uses the group."""
    choices = []
    for path in sorted(conf_dir().glob("*/*.yaml")):
        users = [name for name in COMMANDS if f"- {path.parent.name}:" in (conf_dir() / f"{name}.yaml").read_text()]
        choices += [(user, f"{path.parent.name}={path.stem}") for user in users]
    refused = [("prepare", "segments=pairs"), ("prepare", "segments=full_sentences")]  # prepare stores tokens only
    refused += [("prepare", "masking=ngram")]  # fixed instances are Google's
    refused += [("finetune", f"attention={option}") for option in ("bert", "transformer")]  # with decoder=transformer
    refused += [("finetune", f"norm={option}") for option in ("post", "pre")]
    return [choice for choice in choices if choice not in refused]


def build_with(command: str, *choices: str) -> None:
    arguments = GIVEN[command] if "corpus=python_docs" not in choices else ["output_dir=y"]
    if command == "prepare" and any(choice.startswith("masking=") for choice in choices):
        arguments = [*arguments, "segments=google"]  # else it has no effect, and is refused
    if any(choice.startswith("decoder=") for choice in choices):
        start = ["model_dir=x"] if "decoder=bert" in choices else ["model=tiny", "tokenizer=wordpiece"]
        arguments = ["task=translation", "data_dir=x", "output_dir=y", *start]
    build(schema_of(command), compose(command, [*arguments, *choices]))


def test_every_option_composes_and_builds() -> None:
    """Each with the first command that has it; a command takes one option of every group at once, experiments alone."""
    choices = every_choice()
    assert len(choices) == 230  # a change of conf/ changes this number
    of_command: dict[str, dict[str, list[str]]] = {command: {} for command in COMMANDS}
    for command, choice in {choice: (command, choice) for command, choice in reversed(choices)}.values():
        of_command[command].setdefault(choice.partition("=")[0], []).append(choice)
    composed = set()
    for command, groups in of_command.items():
        build_with(command)
        alone = [
            (choice,) for group in ("experiment", "corpus", "decoder", "tokenizer") for choice in groups.pop(group, [])
        ]
        rounds = itertools.zip_longest(*groups.values())
        for together in [*alone, *(tuple(filter(None, each)) for each in rounds)]:
            build_with(command, *together)
            composed.update(together)
    assert composed == {choice for _, choice in choices}


@pytest.mark.slow
def test_every_option_composes_and_builds_with_every_command() -> None:
    for command, choice in every_choice():
        build_with(command, choice)


def test_cfg_prints_the_composed_configuration(capsys: Capsys) -> None:
    assert run(["pretrain", "data_dir=x", "output_dir=y", "model=mini", "--cfg", "job"]) == 0
    assert "hidden_size: 256" in capsys.readouterr().out


def test_users_add_groups_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "conf" / "model").mkdir(parents=True)
    tiny = (conf_dir() / "model" / "tiny.yaml").read_text()
    (tmp_path / "conf" / "model" / "ours.yaml").write_text(tiny.replace("hidden_size: 128", "hidden_size: 62"))
    arguments = ["model=ours", "data_dir=x", "output_dir=y"]
    assert compose("pretrain", arguments, str(tmp_path / "conf"))["model"]["hidden_size"] == 62


@pytest.mark.usefixtures("quick")
def test_debug_reaches_the_runs_of_a_sweep(tmp_path: Path, capfd: Capsys) -> None:
    missing = ["-m", "prepare", f"corpus.path={tmp_path / 'none'}", f"output_dir={tmp_path / 'sweep'}"]
    missing += ["held_out_prob=0.1,0.2"]
    assert run([*missing, "--debug"]) == 2
    assert "Traceback" in capfd.readouterr().err
    assert run(missing) == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.usefixtures("quick")
def test_a_sweep_runs_every_combination_in_its_own_directory(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", make_text(5))
    more = ["tokenizer.vocab_size=120,140", "shard_tokens=1000,2000", f"output_dir={tmp_path / 'sweep'}"]
    assert run(["prepare", "-m", f"corpus.path={text}", *more]) == 0
    names = sorted(path.name for path in (tmp_path / "sweep").iterdir())
    assert names == [f"tokenizer.vocab_size-{a}_shard_tokens-{b}" for a in (120, 140) for b in (1000, 2000)]


def test_the_help_of_a_task_has_its_composed_settings(tmp_path: Path, capsys: Capsys) -> None:
    """Also of one from a directory of one's own; `bertkit help` says the same as `--help`."""
    own = tmp_path / "task"
    own.mkdir()
    text = "# Stars of reviews.\ndefaults:\n  - regression\n  - _self_\nname: stars\nmax_seq_length: 77\n"
    (own / "stars.yaml").write_text(text)
    assert run(["help", "finetune", "task=ner"]) == 0
    printed = capsys.readouterr().out
    comments = dict(line.strip().partition("  # ")[::2] for line in printed.splitlines() if line.startswith("  task."))
    assert {"task.name: ner", "task.columns.words: null", "task.best_metric: overall_f1"} <= set(comments)
    assert all(comments[line] for line in ("task.documents: false", "task.scheme: auto"))
    assert run(["finetune", "task=ner", "--help"]) == 0
    assert capsys.readouterr().out == printed
    assert run(["finetune", "task=stars", "--help", f"--config-dir={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  # Stars of reviews." in lines
    assert {"  task.max_seq_length: 77", "  task.labels: regression"} <= {line.partition("  # ")[0] for line in lines}
    assert not any("run_classifier" in line for line in lines if "max_seq_length: 77" in line)
    assert any(line.startswith("task= ax, ") and "stars" in line for line in lines)
    refused(run(["finetune", "task=star", "--help"]), "unknown option task=star", capsys)
    refused(run(["help", "finetun"]), "unknown command 'finetun'; did you mean 'finetune'?", capsys)


def test_info_names_versions_and_processors(capsys: Capsys) -> None:
    assert run(["--info"]) == 0
    printed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert printed["torch"] == torch.__version__
    assert printed["configuration"] == str(conf_dir())
    assert int(printed["cpu"].split()[0]) >= 1


def test_saved_settings_are_taken_again(tmp_path: Path, capsys: Capsys) -> None:
    """The command line overrides them; keys that an older file lacks get their defaults."""

    def printed(*arguments: str) -> dict[str, Any]:
        assert run([*arguments, "--cfg=job"]) == 0
        results: dict[str, Any] = yaml.safe_load(capsys.readouterr().out)
        return results

    words = ["task=qa", "model_dir=m", "data_dir=d", "output_dir=o"]
    before = printed("finetune", *words, "task.spans.n_best=7", "optimizer=lamb", "log.every_steps=9")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(before))
    assert printed("finetune", "--config", str(path)) == before
    after = printed("finetune", "--config", str(path), "output_dir=p", "task.spans.n_best=8", "optimizer=adamw")
    assert (after["output_dir"], after["task"]["spans"]["n_best"]) == ("p", 8)
    assert (after["optimizer"]["name"], after["log"], after["task"]["name"]) == ("adamw", before["log"], "qa")
    old = printed("pretrain", "data_dir=d", "output_dir=o", "segments=full_sentences", "model=mini", "steps=7")
    old["init_from"] = "other"
    for newer in ("model_dir", "kernels"):
        del old[newer]
    del old["log"]
    path.write_text(yaml.safe_dump(old))
    again = printed("pretrain", f"--config={path}", "seed=5")
    assert (again["model_dir"], again["kernels"], again["seed"], again["steps"]) == ("other", "auto", 5, 7)
    assert (again["segments"]["kind"], again["model"]) == ("full_sentences", old["model"])
    assert again["log"] == {"every_steps": "auto", "trackers": []}
    del old["segments"]["next_sentence"], old["masking"]["kind"]
    old["masking"] |= {"whole_word": True, "max_ngram": 1}
    path.write_text(yaml.safe_dump(old))
    again = printed("pretrain", f"--config={path}")
    assert (again["segments"]["next_sentence"], again["masking"]["kind"]) == ("none", "whole_word")
    again = printed("pretrain", f"--config={path}", "segments=pairs", "next_sentence=sop", "masking=ngram")
    assert (again["segments"]["next_sentence"], again["masking"]["options"]) == ("sop", {"max_ngram": 3})
    refused(run(["pretrain", "--config", str(tmp_path / "none.yaml")]), "none.yaml: ", capsys)
    refused(run(["pretrain", "--config", str(path), "stepz=3"]), "unknown key 'stepz'; did you mean 'steps'?", capsys)
