"""The search for texts that a published model's files name: what bertkit has is taken, what it lacks is named."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import Capsys
from safetensors.torch import load_file, save_file

from bertkit import export, finetune, load_predictor
from bertkit.base.errors import InputError
from bertkit.interop.hugging_face.generation_json import FILE, FIXED, _Search, search_of

LETTERS = [*"abcdefghijklmnopqrstuvwxyz"]
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
IDS = {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
LENGTH = {"max_target_length": 20}  # where the files have none
TEXTS = ["a b c", "q", "h e l p m e", "z z z z z z z", ""]
# attributes of the class that change no text: speed, memory, what is returned; and ids, which config.json has
OTHERS = {
    *IDS, "bos_token_id", "transformers_version", "_from_model_config", "use_cache", "cache_implementation", "cache_config",
    "max_cache_len", "use_mtp", "token_healing", "remove_invalid_values", "low_memory", "compile_config", "disable_compile",
    "continuous_batching_config", "prefill_chunk_size", "output_attentions", "output_hidden_states", "output_scores",
    "output_logits", "return_dict_in_generate", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "assistant_confidence_threshold", "prompt_lookup_num_tokens", "max_matching_ngram_size", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "speculation_type",
}  # fmt: skip


def published(folder: Path, keys: dict[str, Any], file: str = FILE) -> Path:
    """An encoder-decoder whose texts end at many lengths, with these keys in a file."""
    torch.manual_seed(1)
    shape = {
        "vocab_size": len(VOCAB), "hidden_size": 26, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 37,
        "max_position_embeddings": 29, "initializer_range": 0.5,
    }  # fmt: skip
    sides = [transformers.BertConfig(**shape) for _ in range(2)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*sides)
    config.update(IDS)
    model = transformers.EncoderDecoderModel(config)
    with torch.no_grad():
        model.decoder.cls.predictions.bias[:5] = torch.tensor([-99, -99, -99, 3, -99])
    model.save_pretrained(folder)
    (folder / FILE).unlink()
    content = json.loads((folder / file).read_text()) if file == "config.json" else {**IDS}
    (folder / file).write_text(json.dumps(content | keys))
    (folder / "vocab.txt").write_text("\n".join(VOCAB))
    return folder


def theirs(folder: Path) -> list[str]:
    model = transformers.EncoderDecoderModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = []
    for text in TEXTS:
        with torch.no_grad():
            written = model.generate(tokenizer(text, return_tensors="pt")["input_ids"])
        texts += tokenizer.batch_decode(written, skip_special_tokens=True)
    return texts


@pytest.mark.parametrize("file", [FILE, "config.json"])
@pytest.mark.parametrize("keys", [
    {"max_length": 9}, {"num_beams": 1, "max_length": 9}, {"num_beams": 1, "max_new_tokens": 4, "max_length": 9}, {"num_beams": 3, "max_length": 17},
    {"num_beams": 3, "max_length": 17, "length_penalty": -3.0}, {"num_beams": 4, "max_length": 12, "num_return_sequences": 3},
    {"num_beams": 2}, {"do_sample": False}, {},
], ids=str)  # fmt: skip
def test_texts_are_those_of_transformers(keys: dict[str, Any], file: str, tmp_path: Path, capsys: Capsys) -> None:
    predictor = load_predictor(published(tmp_path, keys, file), device="cpu")
    rows = predictor(TEXTS)
    ours = [each["text"] for row in rows for each in row.get("candidates", [row])]
    assert ours == theirs(tmp_path)
    assert len({*ours}) > 3
    assert "no such setting" not in capsys.readouterr().err


@pytest.mark.parametrize("of_all", [{}, {"num_beams": 2}])
def test_an_old_file_may_have_its_search_in_the_part_of_the_decoder(of_all: dict[str, Any], tmp_path: Path) -> None:
    folder = published(tmp_path, of_all, "config.json")
    content = json.loads((folder / "config.json").read_text())
    content["decoder"] |= {"num_beams": 3, "max_length": 7, "num_return_sequences": 2}
    (folder / "config.json").write_text(json.dumps(content))
    expected = {"max_target_length": 6, "num_beams": 3, "num_candidates": 2} | of_all
    assert search_of(folder, has_decoder=True) == expected
    ours = [each["text"] for row in load_predictor(folder, device="cpu")(TEXTS) for each in row["candidates"]]
    assert ours == theirs(folder)


@pytest.mark.parametrize("keys", [{}, {"num_beams": 2}])
def test_texts_without_a_length_have_as_many_tokens_as_in_transformers(
    keys: dict[str, Any], tmp_path: Path, capsys: Capsys
) -> None:
    folder = published(tmp_path, keys)
    tensors = load_file(folder / "model.safetensors")
    tensors["decoder.cls.predictions.bias"][3] = -99.0  # no text ends
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    ours = [row["text"] for row in load_predictor(folder, device="cpu")(TEXTS)]
    assert ours == theirs(folder)
    assert {len(text.split()) for text in ours} == {20}
    line = (
        f"warning: {folder / FILE}: no max_length: texts have at most 20 tokens, as in transformers; for longer ones "
    )
    assert capsys.readouterr().err.count(line) == 1
    (longer, *_) = load_predictor(folder, device="cpu", **{"task.generation.max_target_length": 27})(TEXTS)
    assert len(longer["text"].split()) == 27
    assert "max_length" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "sample", [{}, {"sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "num_candidates": 5}]
)
def test_a_run_and_its_export_write_its_search(sample: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    given = {"num_beams": 3, "max_target_length": 7, "length_penalty": -1.0, "num_candidates": 2} | sample
    rows = [{"source": text, "target": text[::-1]} for text in TEXTS if text]
    run = finetune(
        task="generation", model_dir=published(tmp_path / "model", {}), train=rows, dev=rows, output_dir=tmp_path / "run",
        num_epochs=1, **{f"task.generation.{name}": value for name, value in given.items()},
        **{"task.metrics": ["exact_match_text"], "task.best_metric": "exact", "task.max_seq_length": 20},
    )  # fmt: skip
    export(model_dir=run, output_dir=tmp_path / "exported")
    shutil.copytree(run.model_dir, tmp_path / "copied")  # without the settings of the run
    written = {"num_beams": 1, "sample": True} if sample else {"sample": False}
    expected = {name: value for name, value in given.items() if not sample or name != "length_penalty"} | written
    for folder in (tmp_path / "exported", tmp_path / "copied"):
        assert search_of(folder, has_decoder=True) == expected
        torch.manual_seed(0)
        texts = theirs(folder)
        assert len(texts) == len(TEXTS) * given["num_candidates"]
        for place in () if sample else (run, folder):
            predicted = load_predictor(place, device="cpu")(TEXTS)
            assert [each["text"] for row in predicted for each in row["candidates"]] == texts


def test_an_export_keeps_the_search_as_it_is(tmp_path: Path) -> None:
    folder = published(tmp_path / "model", {"num_beams": 3, "max_length": 12, "no_repeat_ngram_size": 1})
    export(model_dir=folder, output_dir=tmp_path / "exported")
    assert (tmp_path / "exported" / FILE).read_bytes() == (folder / FILE).read_bytes()
    assert theirs(tmp_path / "exported") == theirs(folder)


def test_what_a_user_sets_comes_first(tmp_path: Path) -> None:
    folder = published(tmp_path, {"num_beams": 3, "max_length": 9, "num_return_sequences": 3})
    more = {"task.generation.num_beams": 1, "task.generation.num_candidates": 1, "task.generation.max_target_length": 3}
    rows = load_predictor(folder, device="cpu", **more)(TEXTS)
    assert all("candidates" not in row and len(row["text"].split()) <= 3 for row in rows)


def test_a_user_may_turn_sampling_off_or_on(tmp_path: Path) -> None:
    """What the files say of sampling then has no effect, or takes effect, as in `transformers`."""
    folder = published(tmp_path, {"do_sample": True, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "max_length": 9})
    greedy = load_predictor(folder, device="cpu", **{"task.generation.sample": False})
    with_beams = load_predictor(published(folder, {"num_beams": 1, "max_length": 9}), device="cpu")
    assert greedy(TEXTS) == with_beams(TEXTS)
    (folder / FILE).write_text(json.dumps({"do_sample": False, "temperature": 0.5, "max_length": 9}))
    expected = {"sample": True, "temperature": 0.5, "top_k": 50, "num_beams": 1, "max_target_length": 8}
    assert search_of(folder, has_decoder=True, sample=True) | {"sample": True} == expected


def test_a_sampled_text_is_from_the_most_probable_tokens(tmp_path: Path) -> None:
    content = {"do_sample": True, "temperature": 0.5, "top_p": 0.9, "num_beams": 1}
    sampled = {"sample": True, "temperature": 0.5, "top_p": 0.9, "top_k": 50, "num_beams": 1}
    for more, top_k in (({}, {}), ({"top_k": 7}, {"top_k": 7}), ({"do_sample": False}, None)):
        (tmp_path / FILE).write_text(json.dumps(content | more))
        expected = {"sample": False, "num_beams": 1, **LENGTH} if top_k is None else sampled | top_k | LENGTH
        assert search_of(tmp_path, has_decoder=True) == expected


@pytest.mark.parametrize("key", FIXED)
def test_what_the_search_lacks_is_named_once(key: str, tmp_path: Path, capsys: Capsys) -> None:
    usual = FIXED[key]
    value = not usual if isinstance(usual, bool) else [[7]] if usual is None else usual + 2  # type: ignore[operator]
    for content, is_named in (({key: value, "num_beams": 2}, True), ({key: usual, "num_beams": 2}, False)):
        (tmp_path / FILE).write_text(json.dumps(content))
        assert search_of(tmp_path, has_decoder=True) == {"num_beams": 2, **LENGTH}
        assert (f"{FILE}: {key}=" in capsys.readouterr().err) == is_named


def test_a_causal_model_counts_the_text_that_it_continues(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / FILE).write_text(json.dumps({"max_length": 30, "num_beams": 2}))
    assert search_of(tmp_path, has_decoder=False) == {"num_beams": 2}
    assert f"{FILE}: max_length=30: " in capsys.readouterr().err
    assert search_of(tmp_path / "no folder", has_decoder=False) == {}
    (tmp_path / FILE).write_text(json.dumps({"max_length": "30"}))
    with pytest.raises(InputError, match="max_length"):
        search_of(tmp_path, has_decoder=True)


def test_every_key_of_transformers_has_one_treatment() -> None:
    tables = [{field.name for field in dataclasses.fields(_Search)}, {*FIXED}, OTHERS]
    assert sum(map(len, tables)) == len(set.union(*tables))
    assert {*vars(transformers.GenerationConfig())} - {"generation_kwargs"} <= set.union(*tables)
