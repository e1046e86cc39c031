"""A long text that is cut has the tokens, offsets and words that it has in one piece."""

import random

import pytest
from conftest import minilm_dir

from bertkit.data.corpus import long_texts, word_rules
from bertkit.data.corpus.long_texts import parts_of, shorten_long_runs
from bertkit.data.corpus.tokenizer import Rules, load_tokenizer, wordpiece
from bertkit.data.corpus.word_cache import WordCache

ATOMS = [
    "a", "the", " ", "  ", "!", "'", ".", "中", "国", "\u0301", "e\u0301", "[MASK]", "[", "\t", "\x07", "\u200d", "Σ", "ΑΣ", "Α'", "é",
    "가", "ß", "\n", "\ufffd", "\xa0", "İ", "ﬁ", "_", "x" * 150, "y" * 201, "z" * 202, "q" * 300, "e\u0301" * 230, "o\u0300\u0301" * 201,
]  # fmt: skip


@pytest.fixture(scope="module")
def vocab() -> dict[str, int]:
    return dict(load_tokenizer(minilm_dir()).backend.get_vocab())


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("rules", ["hugging_face", "google"])
def test_long_texts_tokenized_in_parts_give_same_ids(
    rules: Rules, lowercase: bool, vocab: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(17)
    made = wordpiece(vocab, lowercase, rules=rules)
    num_parts = 0
    for _ in range(25):
        texts = ["".join(rng.choices(ATOMS, k=rng.randint(0, 40))) for _ in range(rng.randint(1, 4))]
        answers = []
        for characters in (10**9, rng.randint(1, 9)):
            monkeypatch.setattr(long_texts, "PART_CHARACTERS", characters)
            monkeypatch.setattr(word_rules, "PART_CHARACTERS", characters)
            monkeypatch.setattr(long_texts, "PARTS_AT_ONCE", 3)
            flat = [actual.encode_flat(texts) for actual in (made, WordCache(made, 50))]
            ids = [(tokens.tolist(), lengths.tolist()) for tokens, lengths in flat]
            answers.append((ids, made.encode_with_offsets(texts), made.words(texts)))
        assert answers[0] == answers[1], texts
        num_parts += sum(len(list(parts_of(text, rules))) for text in texts)
    assert num_parts > 150


def test_runs_of_letters_are_shortened_and_offsets_restored() -> None:
    text, place = shorten_long_runs("é " + "a" * 1000 + "z!" + "b" * 201 + " c")
    assert text == "é " + "a" * 200 + "z!" + "b" * 201 + " c"
    assert [place(at) for at in (0, 2, 203, 204, len(text))] == [0, 2, 1003, 1004, 1207]
