"""Near-duplicates: which texts belong together, in a time that grows linearly."""

import time

import numpy as np

from bertkit.tasks.reading.near_duplicates import NearDuplicates

SENTENCE = "a warm and funny film that anybody would gladly see again"


def test_near_duplicates_are_grouped() -> None:
    texts = {
        SENTENCE: 0,
        "A warm and FUNNY film, that anybody would gladly see again!": 0,  # the same words
        "funny film that anybody would gladly": 0,  # a phrase
        f"critics said it was {SENTENCE} and {SENTENCE} without regret": 0,
        "a cold and funny film that anybody might gladly see again": 1,  # 4 of its 9 shingles
        "funny film that anybody": 2,  # too short to be compared
        "Funny film - that anybody": 2,
        "": 3,
        "!": 4,
        "?": 5,
        "我今天很高兴看到这部电影": 6,
        "他说：我今天很高兴看到这部电影。": 6,
    }
    near = NearDuplicates.of(list(texts))
    for groups in (near.chains().tolist(), near.stars().tolist()):
        numbers = dict.fromkeys(groups)
        assert [list(numbers).index(group) for group in groups] == list(texts.values())
    assert NearDuplicates.of([]).stars().tolist() == []
    assert NearDuplicates.of([""]).chains().tolist() == [0]


def test_a_chain_has_several_representatives() -> None:
    words = [str(number) for number in range(100)]
    chain = [" ".join(words[3 * n : 3 * n + 11]) for n in range(9)]  # each shares 6 of 9 shingles with the next
    near = NearDuplicates.of(chain)
    assert set(near.chains().tolist()) == {0}
    assert near.stars().tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8]
    is_held = np.arange(9) > 4
    assert near.across(is_held).tolist() == [number == 5 for number in range(9)]


def test_many_texts_take_seconds() -> None:
    """Random texts of Zipf's law, every tenth followed by a copy without its end and with another word."""
    words = np.random.default_rng(0).zipf(1.3, size=(10_000, 20)) % 10_000
    texts = [" ".join(map(str, row)) for row in words]
    for place in range(0, len(texts), 10):
        copied = texts[place].split()[:17]
        texts[place + 1] = " ".join([*copied[:5], "other", *copied[6:]])
    started = time.process_time()
    near = NearDuplicates.of(texts)
    groups = near.stars()
    assert time.process_time() - started < 5
    assert (groups[::10] == groups[1::10]).mean() > 0.95
    assert len(set(groups.tolist())) > 8_600
