"""Near-duplicates: which texts belong together, in a time that grows linearly."""

import time

import numpy as np

from bertkit.tasks.reading.near_duplicates import groups_of

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
    numbers = dict.fromkeys(groups_of(list(texts)).tolist())
    actual = [list(numbers).index(group) for group in groups_of(list(texts)).tolist()]
    assert actual == list(texts.values())
    assert groups_of([]).tolist() == []
    assert groups_of([""]).tolist() == [0]


def test_many_texts_take_seconds() -> None:
    """Random texts of Zipf's law, every tenth followed by a copy without its end and with another word."""
    words = np.random.default_rng(0).zipf(1.3, size=(30_000, 20)) % 30_000
    texts = [" ".join(map(str, row)) for row in words]
    for place in range(0, len(texts), 10):
        copied = texts[place].split()[:17]
        texts[place + 1] = " ".join([*copied[:5], "other", *copied[6:]])
    started = time.process_time()
    groups = groups_of(texts)
    assert time.process_time() - started < 8
    assert (groups[::10] == groups[1::10]).mean() > 0.95
    assert len(set(groups.tolist())) > 26_000
