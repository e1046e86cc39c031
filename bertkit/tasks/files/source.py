"""The examples of a split, and what looks wrong in them."""

from __future__ import annotations

from dataclasses import dataclass

from bertkit.tasks.task import Example, SpanExample, TaggingExample

NONE_OF_THEM = "(none)"  # where several labels may hold at once


@dataclass(frozen=True)
class Source:
    """The examples of a split.

    Attributes:
        description: the file or dataset, and its format.
        examples: in the order of the file.
        labels: names in the order of their numbers; none for a regression, spans and choices.
        name: of the file or dataset.
        expected_labels: those that should come.
        oddities: what looks wrong in the file and is no error, a line each.
    """

    description: str
    examples: list[Example]
    labels: tuple[str, ...]
    name: str
    expected_labels: tuple[str, ...]
    oddities: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What looks wrong and is no error, a line each: in the file, and in the labels of these examples."""
        return (*self.oddities, *_class_warnings(self))


def _class_warnings(source: Source) -> list[str]:
    """Say that there is one class alone, or which labels never come; nothing of numbers, answers and what has no labels."""
    seen: set[str] = set()
    classes: set[str] = set()
    for example in source.examples:
        if isinstance(example, TaggingExample):
            own = example.tags or ()
        elif isinstance(example, SpanExample) or example.label is None or isinstance(example.label, float):
            continue
        elif isinstance(example.label, tuple):
            own = example.label
            classes.add(", ".join(own) or NONE_OF_THEM)
        else:
            own = (str(example.label),)
        seen.update(own)
    classes = classes or seen
    if len(classes) == 1:
        (only,) = classes
        return [f"{source.name}: every label is '{only}'; nothing can be learned or measured from one class"]
    missing = [label for label in source.expected_labels if label not in seen]
    return [f"{source.name}: labels that never come: {', '.join(missing)}"] if missing and seen else []
