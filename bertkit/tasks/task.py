"""What flows through every task: examples as people wrote them, features as the model sees them.

    files -> examples (readers) -> features (sequence, tagging, spans, choice) -> batches -> logits -> predictions -> scores

Axes: T tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SequenceExample:
    """A text, or a pair, with a label.

    Attributes:
        id: as the file has it, or the number of the row.
        text: the first segment.
        text_pair: the second segment; None for a single text.
        label: a label's name, or a number for a regression, or the names of all that hold; None where it is not known.
    """

    id: str
    text: str
    text_pair: str | None
    label: str | float | tuple[str, ...] | None


@dataclass(frozen=True)
class TaggingExample:
    """Words, each with a tag.

    Attributes:
        id: as the file has it, or the number of the sentence.
        words: the words of a sentence or document; none is empty.
        tags: one for each word; None where they are not known.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


@dataclass(frozen=True)
class Answer:
    """A piece of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True)
class SpanExample:
    """A question about a context.

    Attributes:
        id: of the question.
        question: as asked.
        context: where the answer is looked for; may be empty.
        answers: the accepted ones; empty where there is none in the context; None where they are not known.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] | None


@dataclass(frozen=True)
class ChoiceExample:
    """A text with several endings, one of them right.

    Attributes:
        id: as the file has it, or the number of the row.
        context: the first segment of every choice.
        endings: the second segments.
        label: the number of the right one; None where it is not known.
    """

    id: str
    context: str
    endings: tuple[str, ...]
    label: int | None


Example = SequenceExample | TaggingExample | SpanExample | ChoiceExample


@dataclass(frozen=True)
class Feature:
    """One sequence `[CLS] A [SEP]` or `[CLS] A [SEP] B [SEP]` that the model sees; an example may have several.

    Attributes:
        example: the place of its example in the list.
        input_ids: T of them.
        token_type_ids: T of them.
        label: sequence: the label's number, or a float, or for several labels at once a 0.0 or 1.0 for each; tagging: a label's number for each token, -100 for none, T of them;
            spans: (start, end), inclusive positions among the T tokens, (0, 0) for no answer; choice: the number of the
            right ending, on each of the features of an example; None where it is not known.
        where: what the shape needs to find its way back from tokens to the example, such as word numbers or character
            offsets, T of them; None where nothing is needed.
        num_cut: pieces of its example that did not fit and that no other feature holds.
    """

    example: int
    input_ids: list[int]
    token_type_ids: list[int]
    label: Any
    where: Any = None
    num_cut: int = 0
