"""Plain mappings to frozen dataclasses: every type, every error, all at once."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from bertkit.base.errors import InputError, nearest
from bertkit.base.typed_settings import build, conf_dir, differences, to_mapping
from bertkit.train.train_config import OptimizerConfig


@dataclass(frozen=True)
class Inner:
    hidden_size: int
    num_layers: int

    def __post_init__(self) -> None:
        problems = [f"inner.{n}={v}: expected at least 1" for n, v in vars(self).items() if v < 1]
        if problems:
            raise InputError(*problems)


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    rate: float


def one(annotation: Any) -> type:
    return dataclasses.make_dataclass("One", [("x", annotation)], frozen=True)


ACCEPTED = [
    (int, 7, 7),
    (int, 1e6, 1_000_000),
    (int, -3, -3),
    (float, 0.5, 0.5),
    (float, 2, 2.0),
    (bool, False, False),
    (str, "a", "a"),
    (str | None, None, None),
    (str | None, "a", "a"),
    (int | Literal["auto"], "auto", "auto"),
    (int | Literal["auto"], 3, 3),
    (Literal["linear", "constant"], "constant", "constant"),
    (tuple[int, ...], [1, 2.0], (1, 2)),
    (tuple[str, ...], [], ()),
    (tuple[int, ...], 7, (7,)),
    (tuple[str, ...], "a", ("a",)),
    (str | tuple[str, ...], "a", "a"),
    (str | tuple[str, ...], ["a", "b"], ("a", "b")),
]


@pytest.mark.parametrize(("annotation", "inputs", "expected"), ACCEPTED)
def test_values_are_converted_to_annotated_type(annotation: Any, inputs: Any, expected: Any) -> None:
    value = build(one(annotation), {"x": inputs}).x
    assert value == expected
    assert type(value) is type(expected)


REFUSED = [
    (int, 1.5, "x=1.5: expected a whole number"),
    (int, float("inf"), "x=inf: expected a whole number"),
    (int, True, "x=True: expected a whole number"),
    (int, "7", "x='7': expected a whole number"),
    (int, None, "x=None: expected a whole number"),
    (float, "fast", "x='fast': expected a number"),
    (float, float("inf"), "x=inf: expected a finite number"),
    (float, float("nan"), "x=nan: expected a finite number"),
    (float | Literal["auto"], float("-inf"), "x=-inf: expected a finite number or auto"),
    (tuple[float, ...], [1.0, float("nan")], "x[1]=nan: expected a finite number"),
    (float, True, "x=True: expected a number"),
    (bool, 1, "x=1: expected true or false"),
    (str, 3, "x=3: expected text"),
    (str | None, 3, "x=3: expected text or null"),
    (int | Literal["auto"], "automatic", "x='automatic': expected a whole number or auto"),
    (Literal["linear", "constant"], "cosine", "x='cosine': expected linear or constant"),
    (tuple[int, ...], [1, "2"], "x[1]='2': expected a whole number"),
    (tuple[int, ...], "1", "x='1': expected a list of whole numbers"),
    (int, "???", "missing value: set x="),
    (Inner, 3, "x=3: expected a group of settings"),
]


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED)
def test_values_of_wrong_type_are_refused(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        build(one(annotation), {"x": value})
    assert str(caught.value) == message


def test_all_errors_at_once_with_nested_paths() -> None:
    mapping = {"nam": "a", "name": 3, "inner": {"hiden_size": 1, "hidden_size": "???", "num_layers": "2"}}
    with pytest.raises(InputError) as caught:
        build(Outer, mapping)
    assert sorted(str(caught.value).split("\n")) == sorted(
        [
            "unknown key 'nam'; did you mean 'name'?",
            "name=3: expected text",
            "unknown key 'inner.hiden_size'; did you mean 'hidden_size'?",
            "missing value: set inner.hidden_size=",
            "inner.num_layers='2': expected a whole number",
            "missing value: set rate=",
        ]
    )


def test_rules_are_reported_with_the_other_errors() -> None:
    with pytest.raises(InputError) as caught:
        build(Outer, {"name": "a", "inner": {"hidden_size": 0, "num_layers": -1}, "rate": "x"})
    assert str(caught.value).split("\n") == [
        "inner.hidden_size=0: expected at least 1",
        "inner.num_layers=-1: expected at least 1",
        "rate='x': expected a number",
    ]


def test_a_missing_option_is_a_missing_value() -> None:
    with pytest.raises(InputError, match=r"^missing value: set optimizer.name=\n") as caught:
        build(OptimizerConfig, {"options": {"a": 1}}, "optimizer")
    assert {line.partition(".")[0] for line in caught.value.args} == {"missing value: set optimizer"}


def test_the_first_form_without_problems_converts() -> None:
    kind = Literal["auto"] | tuple[str, ...] | tuple[int, ...]
    assert [build(one(kind), {"x": value}).x for value in ("auto", ["a"], [1])] == ["auto", ("a",), (1,)]
    with pytest.raises(InputError, match=r"^x\[1\]=1: expected text$"):
        build(one(kind), {"x": ["a", 1]})


def test_an_unknown_key_far_from_all_names_gets_no_suggestion() -> None:
    assert nearest("zzz", ["name", "rate"]) == ""
    assert nearest("raet", ["name", "rate"]) == "; did you mean 'rate'?"


def test_settings_become_mapping_and_back() -> None:
    mapping = {"name": "a", "inner": {"hidden_size": 2, "num_layers": 3}, "rate": 0.5}
    assert build(Outer, mapping) == Outer("a", Inner(2, 3), 0.5)
    assert to_mapping(build(Outer, mapping)) == mapping
    assert to_mapping(build(one(tuple[int, ...]), {"x": [1, 2]})) == {"x": [1, 2]}


def test_differences_lists_changed_added_and_removed_keys() -> None:
    old = {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}
    assert differences(old, {"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}) == []
    assert differences(old, {"a": 5, "b": {"c": 2, "f": 4}, "e": [2]}) == [
        ("a", 1, 5),
        ("b.d", 3, None),
        ("b.f", None, 4),
        ("e", [1], [2]),
    ]


def test_conf_dir_is_found() -> None:
    assert (conf_dir() / "pretrain.yaml").is_file()


@dataclass(frozen=True)
class Cat:
    kind: Literal["cat", "tiger"]
    num_lives: int


@dataclass(frozen=True)
class Dog:
    kind: Literal["dog"]
    is_loud: bool


@dataclass(frozen=True)
class Home:
    pet: Cat | Dog | None


@pytest.mark.parametrize(("pet", "built"), [
    ({"kind": "tiger", "num_lives": 9}, Cat("tiger", 9)),
    ({"kind": "dog", "is_loud": True}, Dog("dog", True)),
    (None, None),
])  # fmt: skip
def test_one_of_several_groups_is_chosen_by_its_kind(pet: Any, built: Any) -> None:
    assert build(Home, {"pet": pet}) == Home(built)


@pytest.mark.parametrize(("pet", "message"), [
    ({"kind": "dog", "num_lives": 9}, "unknown key 'pet.num_lives'; pet has only 'kind', 'is_loud'\nmissing value: set pet.is_loud="),
    ({"kind": "cow", "num_lives": 9}, "pet.kind='cow': expected cat or tiger or dog"),
    ({"kind": ["dog"], "is_loud": True}, "pet.kind=['dog']: expected cat or tiger or dog"),
    ({"is_loud": True}, "missing value: set pet.kind= to cat or tiger or dog"),
    ("dog", "pet='dog': expected a group of settings or null"),
])  # fmt: skip
def test_value_of_no_group_is_refused(pet: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        build(Home, {"pet": pet})
    assert str(error.value) == message
