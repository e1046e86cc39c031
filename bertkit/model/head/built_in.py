"""The heads of BERT.

Source: google-research/bert run_pretraining.py `get_next_sentence_output`, run_classifier.py and run_squad.py `create_model`; Devlin
et al. 2019, figure 4 and section 4.4; for dropout transformers modeling_bert.py.

Axes: as in attention.py.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.base import plugins
from bertkit.model.bert import Bert
from bertkit.model.bert_config import BertConfig, ProblemType, problem_type_of
from bertkit.model.decoder import Decoder
from bertkit.model.head.head import Encoded, Head, LinearHead, MaskedLMHead, PlainLMHead, ReplacedTokenHead
from bertkit.model.recurrent.decoder import RecurrentDecoder

READ = 'inputs = tokenizer("A text to read.", truncation=True, return_tensors="pt")\n'
_LOSSES: dict[ProblemType, Callable[[Tensor, Tensor], Tensor]] = {
    "regression": F.mse_loss,
    "multi_label_classification": F.binary_cross_entropy_with_logits,
    "single_label_classification": F.cross_entropy,
}


@plugins.option("model_head", "masked_lm")
class MaskedToken(Head):
    """The original token at each masked position."""

    is_pooled, is_of_vocabulary = False, True
    is_shown = True  # the token that is predicted may be shown, as one in ten is
    auto_class, hub_task = "AutoModelForMaskedLM", "fill-mask"
    code = """\
inputs = tokenizer(f"Paris is the {tokenizer.mask_token} of France.", return_tensors="pt")
at_mask = inputs["input_ids"][0] == tokenizer.mask_token_id
print(tokenizer.decode(model(**inputs).logits[0, at_mask].argmax(-1)))
"""

    def make(self, config: BertConfig, encoder: Bert) -> nn.Module:
        """Make a transform with an output matrix that is tied to the token embeddings, or one linear map."""
        return PlainLMHead(config) if config.plain_lm_head else MaskedLMHead(config, is_shown=self.is_shown)

    def logits(self, module: nn.Module, encoded: Encoded) -> Tensor:
        """(M, D) -> (M, V)."""
        places = encoded.masked_positions
        hidden = encoded.last if places is None else encoded.last[places]
        return module(hidden, encoded.token_embedding)  # type: ignore[no-any-return]

    def reads_all(self, has_positions: bool) -> bool:
        """Return whether no positions are given."""
        return not has_positions or type(self).logits is not MaskedToken.logits

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the ids of about 15 % of the tokens, at least one in each sequence, -100 elsewhere."""
        chosen = (torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < 0.15) & is_token
        chosen[:, 1] = is_token[:, 1]
        return torch.where(chosen, ids, -100)


@plugins.option("model_head", "next_sentence")
class NextSentence(Head):
    """Whether segment B follows A (0) or not (1: B is random, or the segments are swapped)."""

    has_dropout = False
    auto_class, hub_task = "AutoModelForNextSentencePrediction", "text-classification"
    code = """\
inputs = tokenizer("A sentence.", "The next one, or not.", return_tensors="pt")
print(model(**inputs).logits.softmax(-1))  # that it is the next one, that it is not
"""

    def make(self, config: BertConfig, encoder: Bert) -> nn.Module:
        """Make a linear map to both labels, whatever `head.kind` is."""
        return LinearHead(config, 2)


@plugins.option("model_head", "next_token")
class NextToken(MaskedToken):
    """The token after each position."""

    is_shown = False
    auto_class, hub_task = "AutoModelForCausalLM", "text-generation"
    code = """\
inputs = tokenizer("Once upon a time", return_tensors="pt")["input_ids"][:, :-1]  # without [SEP], which ends a text
print(tokenizer.decode(model.generate(inputs, max_length=model.config.max_position_embeddings)[0], skip_special_tokens=True))
"""

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the ids, -100 in padding."""
        return torch.where(is_token, ids, -100)

    def reference_loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the loss of each token's prediction of the next one."""
        return super().reference_loss(logits[:, :-1], labels[:, 1:], is_token, config)

    def is_their_loss(self, is_token: Tensor) -> bool:
        """The loss of `transformers` is always in float32."""
        return False


@plugins.option("model_head", "replaced_token")
class ReplacedToken(Head):
    """Whether each token was replaced by a generator's (Clark et al. 2020, section 2)."""

    is_pooled = has_dropout = False
    auto_class, hub_task = "AutoModelForPreTraining", "feature-extraction"
    code = f"""\
{READ}for token, logit in zip(inputs.tokens(), model(**inputs).logits[0]):
    print(token, float(logit.sigmoid()))  # the probability that it was replaced
"""

    def make(self, config: BertConfig, encoder: Bert) -> nn.Module:
        """Make two linear maps with an activation between them, whatever `head.kind` is."""
        return ReplacedTokenHead(config)

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return ones, (B, T): every token was replaced."""
        return torch.ones(ids.shape)

    def reference_loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the mean binary cross-entropy of the tokens, for logits (B, T, 1)."""
        return F.binary_cross_entropy_with_logits(logits[is_token][:, 0], labels[is_token])

    def their_logits(self, output: Mapping[str, Tensor]) -> Tensor:
        """Return the logits with an axis for their only number."""
        return output["logits"][..., None]


@plugins.option("model_head", "sequence")
class Sequence(Head):
    """The class or the score of a text or a pair."""

    task, has_label_names = "sequence", True
    auto_class, hub_task = "AutoModelForSequenceClassification", "text-classification"
    code = f"{READ}print(model.config.id2label[int(model(**inputs).logits.argmax())])\n"
    # for models that do not predict a single label
    _codes: Mapping[str | None, str] = {
        "regression": f"{READ}print(float(model(**inputs).logits[0, 0]))\n",
        "sigmoid": f"{READ}print(float(model(**inputs).logits[0, 0].sigmoid()))\n",
        "multi_label_classification": f"{READ}print(model(**inputs).logits.sigmoid())  # of each label, by model.config.id2label\n",
    }

    def code_for(self, config: BertConfig) -> str:
        """Return code for a class, a number or several labels."""
        return self._codes.get(config.score_activation or problem_type_of(config), self.code)

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the last class, or ones."""
        if problem_type_of(config) == "single_label_classification":
            return torch.full((len(ids),), len(config.labels) - 1)
        return torch.ones(len(ids), len(config.labels))

    def reference_loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the loss of the problem type."""
        return _LOSSES[problem_type_of(config)](logits, labels)

    def their_logits(self, output: Mapping[str, Tensor]) -> Tensor:
        """Return the logits, (B, C); DeBERTa returns (B,) for a regression with labels."""
        return output["logits"].reshape(len(output["logits"]), -1)


@plugins.option("model_head", "token")
class Token(Head):
    """The label of every token."""

    is_pooled, labels_tokens = False, True
    task, has_label_names = "tagging", True
    auto_class, hub_task = "AutoModelForTokenClassification", "token-classification"
    code = f"""\
{READ}for token, number in zip(inputs.tokens(), model(**inputs).logits[0].argmax(-1)):
    print(token, model.config.id2label[int(number)])
"""

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the last class, -100 in padding."""
        return torch.where(is_token, len(config.labels) - 1, -100)


@plugins.option("model_head", "span")
class Span(Head):
    """The start and the end of an answer."""

    is_pooled = has_dropout = compares_loss = False
    task = "spans"
    auto_class, hub_task = "AutoModelForQuestionAnswering", "question-answering"
    code = """\
inputs = tokenizer("Who wrote it?", "It was written by Ada.", return_tensors="pt")
out = model(**inputs)
start, end = int(out.start_logits.argmax()), int(out.end_logits.argmax())
print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))
"""

    def num_outputs(self, config: BertConfig) -> int:
        """Return 2: start and end."""
        return 2

    def labels(self, ids: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return an answer from the second to the third token, (B, 2)."""
        return torch.tensor([1, 2]).expand(len(ids), 2)

    def reference_loss(self, logits: Tensor, labels: Tensor, is_token: Tensor, config: BertConfig) -> Tensor:
        """Return the mean loss of start and end, for logits (B, T, 2); padding cannot be an answer."""
        scores = logits.masked_fill(~is_token[..., None], float("-inf"))
        return (F.cross_entropy(scores[..., 0], labels[:, 0]) + F.cross_entropy(scores[..., 1], labels[:, 1])) / 2

    def their_labels(self, labels: Tensor) -> dict[str, Tensor]:
        """Return start and end as two arguments."""
        return {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}

    def their_logits(self, output: Mapping[str, Tensor]) -> Tensor:
        """Stack the logits of start and end."""
        return torch.stack([output["start_logits"], output["end_logits"]], -1)

    def is_their_loss(self, is_token: Tensor) -> bool:
        """The loss of `transformers` counts padding as possible answers."""
        return bool(is_token.all())


@plugins.option("model_head", "choice")
class Choice(Head):
    """The score of one of several endings."""

    num_choices, compares_loss = 2, False
    task = "choice"
    auto_class, hub_task = "AutoModelForMultipleChoice", "multiple-choice"
    code = """\
inputs = tokenizer(["It rains."] * 2, ["I take a coat.", "I take a nap."], padding=True, return_tensors="pt")
print(int(model(**{name: value[None] for name, value in inputs.items()}).logits.argmax()))
"""

    def num_outputs(self, config: BertConfig) -> int:
        """Return 1: the score."""
        return 1


@plugins.option("model_head", "generation")
class Generation(Head):
    """A new text; it is not compared by labels."""

    is_pooled = is_compared_by_loss = False
    task = "generation"
    auto_class, hub_task = "AutoModelForSeq2SeqLM", "text2text-generation"
    code = f"""\
{READ}written = model.generate(**inputs, max_length=model.config.decoder.max_position_embeddings)
print(tokenizer.decode(written[0], skip_special_tokens=True))
"""

    def make(self, config: BertConfig, encoder: Bert) -> nn.Module:
        """Make the decoder."""
        assert config.decoder is not None, "a model with this head has a decoder"
        if config.decoder.kind == "rnn":
            return RecurrentDecoder(config)
        return Decoder(config, encoder, MaskedLMHead(config) if config.decoder.kind == "bert" else None)

    def logits(self, module: nn.Module, encoded: Encoded) -> Tensor | None:
        """Return the logits of the next token at each place of the targets, (S, V); None without targets."""
        texts = encoded.targets
        if texts is None:
            return None
        source = encoded.last, encoded.layout, encoded.alignments
        return module(texts.input_ids, texts.layout, *source)  # type: ignore[no-any-return]
