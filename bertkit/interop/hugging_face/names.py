"""Names of parameters in bertkit and in Hugging Face: one table, from which the inverse is computed.

`{}` stands for the number of a layer. Hugging Face calls three heads `classifier`, and two `cls.predictions`; the inverse depends on both.
"""

import re
from collections.abc import Iterable, Mapping


def by_weight(modules: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the weights of modules, with their biases."""
    return {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in modules.items() for part in ("weight", "bias")}


OF_A_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "feed_forward.intermediate": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward_norm": "output.LayerNorm",
}
CLASSIFIERS = ("sequence", "token", "choice")
LM_HEADS = ("masked_lm", "next_token")
_MODULES = {
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    **{f"bert.encoder.layers.{{}}.{ours}": f"bert.encoder.layer.{{}}.{theirs}" for ours, theirs in OF_A_LAYER.items()},
    "bert.pooler.dense": "bert.pooler.dense",
    "heads.masked_lm.dense": "cls.predictions.transform.dense",
    "heads.masked_lm.norm": "cls.predictions.transform.LayerNorm",
    "heads.next_token.dense": "cls.predictions.transform.dense",
    "heads.next_token.norm": "cls.predictions.transform.LayerNorm",
    "heads.next_sentence.dense": "cls.seq_relationship",
    "heads.span.dense": "qa_outputs",
    "heads.sequence.dense": "classifier",
    "heads.token.dense": "classifier",
    "heads.choice.dense": "classifier",
}
HUGGING_FACE = {
    "bert.embeddings.token.weight": "bert.embeddings.word_embeddings.weight",
    "bert.embeddings.position.weight": "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.segment.weight": "bert.embeddings.token_type_embeddings.weight",
    "heads.masked_lm.bias": "cls.predictions.bias",
    "heads.next_token.bias": "cls.predictions.bias",
    **by_weight(_MODULES),
}
_DECODER = (
    ("bert.embeddings.", "heads.generation.embeddings."),
    ("bert.encoder.layers.", "heads.generation.layers."),
    ("heads.masked_lm.", "heads.generation.score."),
)
_CROSS = {
    f"heads.generation.layers.{{}}.cross_{ours}.{part}": f"decoder.bert.encoder.layer.{{}}.cross{theirs}.{part}"
    for ours, theirs in OF_A_LAYER.items()
    for part in ("weight", "bias")
    if ours.startswith("attention")
}


def in_decoder(name: str) -> str:
    """Return the name that an encoder's parameter has in a BERT decoder; "" if a decoder has no such parameter."""
    return next((f"{there}{name.removeprefix(here)}" for here, there in _DECODER if name.startswith(here)), "")


def in_masked_lm(name: str) -> str:
    """Return the name that a parameter with which a new task head begins has in a masked LM head."""
    return re.sub(r"^heads\.\w+\.transform\.", "heads.masked_lm.", name)


HUGGING_FACE |= _CROSS | {
    ours: f"decoder.{theirs}" for name, theirs in HUGGING_FACE.items() if (ours := in_decoder(name))
}
OWN = re.compile(
    r"\.attention\.slots\.|^bert\.encoder\.(?!layer\.|layers\.\d+\.attention\.)|^bert\.pooler\.score\."
    r"|^bert\.embeddings\.(plugin|first_projection|projection|task)\.|^heads\."
)
_LAYER = re.compile(r"(?<=\.layer\.)\d+|(?<=\.layers\.)\d+|(?<=/layer_)\d+")  # the number of a layer in a name
_BARE = re.compile(r"^(?=(embeddings|encoder|pooler)\.)")  # of an encoder that was saved without heads
# added by torch.compile and FSDP, wherever a module is wrapped, and by data-parallel training
_WRAPPERS = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_OUTERMOST = re.compile(r"^(module\.)+")


def of_encoder(prefix: str) -> dict[str, str]:
    """Return the names of the weights of an encoder that has BERT's, by another prefix."""
    return {
        ours: f"{prefix}{theirs[len('bert.') :]}" for ours, theirs in HUGGING_FACE.items() if ours.startswith("bert.")
    }


def to_hugging_face(name: str, table: Mapping[str, str] = HUGGING_FACE) -> str:
    """Translate a bertkit name; parameters that only bertkit's variants have keep their names."""
    theirs = translate([name], table)
    return name if name not in theirs and OWN.search(name) else theirs[name]


def from_hugging_face(
    names: Iterable[str],
    classifier: str = "sequence",
    lm: str = "masked_lm",
    table: Mapping[str, str] = HUGGING_FACE,
) -> dict[str, str]:
    """Translate names of Hugging Face; names that bertkit does not know are left out.

    `classifier` and `lm` are the heads that `classifier.*` and `cls.predictions.*` belong to. Parameters of variants keep theirs.
    """
    others = tuple(f"heads.{head}." for head in {*CLASSIFIERS, *LM_HEADS} - {classifier, lm})
    inverse = {theirs: ours for ours, theirs in table.items() if not ours.startswith(others)}
    return {name: name for name in names if OWN.search(name)} | translate(names, inverse)


def full_name(name: str) -> str:
    """Add the prefix `bert.` to a name from an encoder that was saved without heads."""
    return f"bert.{name}" if _BARE.match(name) else name


def unwrapped(name: str) -> str:
    """Remove what torch adds to the name of a weight when a model is wrapped."""
    return _OUTERMOST.sub("", _WRAPPERS.sub("", name))


def translate(names: Iterable[str], table: Mapping[str, str]) -> dict[str, str]:
    """Translate names with a table of templates, in which a layer without a number is 0; names without a template are left out."""
    translated = {}
    for name in names:
        template = _LAYER.sub("{}", name)
        if template in table:
            translated[name] = table[template].replace("{}", "".join(_LAYER.findall(name)) or "0")
    return translated
