"""The names of `import bertkit`, for editors and type checkers; written by tests/signatures.py."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from bertkit.functions import Run as Run
from bertkit.estimators import BertClassifier as BertClassifier
from bertkit.estimators import BertRegressor as BertRegressor
from bertkit.estimators import BertTagger as BertTagger
from bertkit.interop.hugging_face.directory import export_model as export_model
from bertkit.interop.load import load_model as load_model
from bertkit.interop.load import load_tokenizer as load_tokenizer
from bertkit.interop.parity.certificate import check_certificate as check_certificate
from bertkit.inference.embedding import load_embedder as load_embedder
from bertkit.inference.predictor import LoadedPredictor
from bertkit.training.finetuning import Finetuning as Finetuning
from bertkit.training.pretraining import Pretraining as Pretraining
from bertkit.training.fit import fit as fit
from bertkit.training.data_and_model import new_model as new_model
from bertkit.training.data_and_model import open_dataset as open_dataset
from bertkit.base.batch import Batch as Batch
from bertkit.base.batch import Target as Target
from bertkit.objectives.losses import head_losses as head_losses
from bertkit.objectives.losses import outputs as outputs
from bertkit.objectives.objective import MaskedLM as MaskedLM
from bertkit.objectives.objective import Moment as Moment
from bertkit.objectives.objective import Objective as Objective
from bertkit.train.losses import LossTerm as LossTerm
from bertkit.train.losses import cross_entropy as cross_entropy

__version__: str
COMMANDS: tuple[str, ...]

_Path: TypeAlias = str | PathLike[str]
_Rows: TypeAlias = Iterable[object]
_Made = TypeVar("_Made", bound=Callable[..., object])


class _SegmentsConfig(TypedDict, total=False):
    name: str
    kind: Literal['pairs', 'full_sentences'] | Literal['google']
    max_seq_length: int
    short_seq_prob: float
    next_sentence: Literal['nsp', 'sop', 'none']
    dupe_factor: int
    max_predictions_per_seq: int

_SegmentsOption: TypeAlias = Literal['full_sentences', 'google', 'pairs']

class _CorpusConfig(TypedDict, total=False):
    name: str | str | None
    source: Literal['files', 'python_docs', 'hub', 'texts']
    path: _Path | Sequence[_Path] | None
    format: Literal['auto', 'text', 'jsonl', 'json', 'parquet', 'arrow', 'wikiextractor']
    field: str
    sentences: Literal['auto', 'lines', 'split']
    encoding: str
    split: str
    lines: Literal['auto', 'sentences', 'documents']
    deduplicate: Literal['exact', 'near'] | None

_CorpusOption: TypeAlias = Literal['files', 'hub', 'python_docs']

class _TokenizerConfig(TypedDict, total=False):
    name: str
    path: _Path | None
    vocab_size: int
    min_frequency: int
    lowercase: bool | None
    rules: Literal['auto', 'hugging_face', 'google']
    kind: Literal['wordpiece', 'bpe', 'unigram']
    strip_accents: bool | None
    coverage: float

_TokenizerOption: TypeAlias = Literal['bpe', 'unigram', 'wordpiece']

class _MaskingConfig(TypedDict, total=False):
    name: str
    probability: float
    mask_prob: float
    random_prob: float
    kind: str
    options: dict[str, Any]

class _FeedForwardConfig(TypedDict, total=False):
    kind: str
    bias: bool
    output_bias: bool | None
    options: dict[str, Any]

class _FinalPhaseConfig(TypedDict, total=False):
    max_seq_length: int | None
    share: float

class _BatchConfig(TypedDict, total=False):
    sequences: int
    micro_sequences: int | Literal['auto']
    micro_tokens: int | Literal['auto']

class _CheckpointConfig(TypedDict, total=False):
    keep_last: int
    background: bool
    on_save_error: Literal['stop', 'continue']
    every_steps: int
    keep_best: bool

class _EvaluationConfig(TypedDict, total=False):
    every_steps: int
    max_sequences: int

class _LogConfig(TypedDict, total=False):
    every_steps: int | Literal['auto']
    trackers: Sequence[str]

class _NumericsConfig(TypedDict, total=False):
    max_skips_in_a_row: int

class _ResumeConfig(TypedDict, total=False):
    allow: Sequence[str]

class _SkipConfig(TypedDict, total=False):
    skip_steps: Sequence[int]

class _AttentionConfig(TypedDict, total=False):
    name: str
    score: str
    score_options: dict[str, Any]
    additive_size: int
    positions: str
    positions_options: dict[str, Any]
    also_learned: bool
    max_distance: int
    relative_to: Sequence[Literal['keys', 'values']]
    distance_buckets: int
    distance_terms: Sequence[Literal['c2p', 'p2c']]
    distance_maps: Literal['shared', 'own']
    distance_norm: bool
    rotary_base: float
    rotary_local_base: float | None
    rotary_factor: float
    rotary_pairs: Literal['neighbours', 'halves']
    pattern: str
    pattern_options: dict[str, Any]
    window: int
    full_every: int
    block_size: int
    random_blocks: int
    random_seed: int
    compressed_size: int
    compression_shared: Literal['none', 'heads', 'key_value', 'layers']
    bias: bool
    key_bias: bool
    key_value_heads: int | None

_AttentionOption: TypeAlias = Literal['bert', 'deberta', 'modern', 'mpnet', 'transformer']

class _NormConfig(TypedDict, total=False):
    name: str
    placement: Literal['post', 'pre']
    kind: str
    bias: bool
    before_first: bool
    of_embeddings: bool

class _OptimizerConfig(TypedDict, total=False):
    name: str
    peak_learning_rate: float | Literal['auto']
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    bias_correction: bool
    max_grad_norm: float
    options: dict[str, Any]

class _BertShape(TypedDict, total=False):
    name: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    hidden_act: Literal['gelu', 'gelu_new', 'gelu_pytorch_tanh', 'leaky_relu', 'mish', 'quick_gelu', 'relu', 'relu2', 'relu6', 'sigmoid', 'silu', 'swish', 'tanh']
    hidden_dropout_prob: float
    attention_probs_dropout_prob: float
    max_position_embeddings: int
    type_vocab_size: int
    initializer_range: float
    layer_norm_eps: float
    scale_outputs: bool
    frequency_biases: bool
    task_transform: bool
    family: str | None
    embedding_size: int | None
    shared_layers: bool
    encoder: str

_ModelOption: TypeAlias = Literal['albert_mini', 'base', 'deberta_mini', 'electra_mini', 'eurobert_mini', 'large', 'medium', 'mini', 'modern_base', 'modern_mini', 'modern_small', 'modern_tiny', 'roberta_mini', 'small', 'tiny']

class _ScheduleConfig(TypedDict, total=False):
    name: str
    power: float
    decay_from: Literal['warmup_end', 'start']
    warmup_steps: int | Literal['auto']
    warmup_share: float | Literal['auto']
    decay: str
    options: dict[str, Any]

class _LaunchConfig(TypedDict, total=False):
    name: str
    num_processes: int
    num_hosts: int
    host_rank: int
    address: str | None
    hang_timeout_seconds: float

_LaunchOption: TypeAlias = Literal['workers']

_ExperimentOption: TypeAlias = Literal['attention_zoo', 'bert_base', 'bert_large_lamb_phase1', 'bert_large_lamb_phase2', 'continue_pretraining', 'language_model', 'quickstart']

class _HeadConfig(TypedDict, total=False):
    kind: str
    options: dict[str, Any]

class _EpochCheckpointConfig(TypedDict, total=False):
    keep_last: int
    background: bool
    on_save_error: Literal['stop', 'continue']
    every_steps: int | Literal['epoch']

class _DevEvaluationConfig(TypedDict, total=False):
    every_steps: int | Literal['epoch']
    patience: int | None

class _FilesConfig(TypedDict, total=False):
    train: str | Sequence[str]
    dev: str | Sequence[str]
    test: str | Sequence[str]
    dev_mismatched: str | Sequence[str]
    test_mismatched: str | Sequence[str]

class _ColumnsConfig(TypedDict, total=False):
    id: str | int | Sequence[str] | None
    text: str | int | Sequence[str] | None
    text_pair: str | int | Sequence[str] | None
    label: str | int | Sequence[str] | None
    words: str | int | Sequence[str] | None
    tags: str | int | Sequence[str] | None
    question: str | int | Sequence[str] | None
    context: str | int | Sequence[str] | None
    answers: str | int | Sequence[str] | None
    endings: str | int | Sequence[str] | None
    ending_start: str | int | Sequence[str] | None
    source: str | int | Sequence[str] | None
    target: str | int | Sequence[str] | None

class _HubConfig(TypedDict, total=False):
    path: _Path | None
    name: str | None
    revision: str | None
    train: str | None
    dev: str | None
    test: str | None
    dev_mismatched: str | None
    test_mismatched: str | None

class _TaggingConfig(TypedDict, total=False):
    window_overlap: int | None

class _SpansConfig(TypedDict, total=False):
    window_step: int
    max_query_length: int
    n_best: int
    max_answer_length: int
    null_score_diff_threshold: float
    is_always_answered: bool

class _RecipeConfig(TypedDict, total=False):
    batch_sequences: int
    peak_learning_rate: float
    num_epochs: int
    warmup_share: float

class _GenerationConfig(TypedDict, total=False):
    max_target_length: int
    num_beams: int
    length_penalty: float
    label_smoothing: float
    num_candidates: int
    sample: bool
    temperature: float
    top_k: int | None
    top_p: float | None

class _TaskConfig(TypedDict, total=False):
    name: str
    kind: str
    folders: Sequence[str]
    files: _FilesConfig
    format: Literal['auto', 'tsv', 'csv', 'jsonl', 'json', 'parquet', 'xlsx', 'label_text', 'conll', 'conllu']
    header: bool | None
    column_names: Sequence[str] | None
    columns: _ColumnsConfig
    needs_pair: bool
    labels: Literal['auto', 'regression'] | Sequence[str] | Sequence[int] | None
    labels_in_files: Sequence[str] | None
    multi_label: bool
    label_separator: str
    label_range: Sequence[float] | None
    skip_labels: Sequence[str]
    skip_short_rows: bool
    scheme: Literal['auto', 'iob1', 'iob2', 'bioes', 'none']
    documents: bool
    comment: str | None
    hub: _HubConfig
    metrics: Sequence[str]
    best_metric: str
    max_seq_length: int
    tagging: _TaggingConfig | None
    spans: _SpansConfig | None
    recipe: _RecipeConfig
    generation: _GenerationConfig | None
    long_texts: Literal['mean', 'max'] | None
    separator: str
    encoding: str
    takes_pairs: bool

_TaskOption: TypeAlias = Literal['ax', 'choice', 'classification', 'cola', 'conll2003', 'generation', 'minimal_pairs', 'mnli', 'mrpc', 'ner', 'pos', 'qa', 'qnli', 'qqp', 'regression', 'rte', 'sequence', 'spans', 'squad1', 'squad2', 'sst2', 'stsb', 'swag', 'tagging', 'translation', 'wnli']

class _DecoderSettings(TypedDict, total=False):
    name: str
    kind: Literal['bert', 'transformer', 'rnn']
    norm: Literal['post', 'pre']
    score: Literal['additive', 'dot', 'general', 'location', 'local_m', 'local_p', 'none']
    window: int
    input_feeding: bool
    num_layers: int
    cell: str
    reset_gate: Literal['after', 'before']
    bidirectional: bool
    reverse_source: bool
    share: bool
    initializer_range: float | Literal['auto']

_DecoderOption: TypeAlias = Literal['bert', 'rnn', 'transformer']

class _BothConfig(TypedDict, total=False):
    search: float
    bert: float
    bias: float

class _PassagesConfig(TypedDict, total=False):
    words: int
    overlap: int
    stemming: Literal['none', 'arabic', 'danish', 'dutch', 'english', 'finnish', 'french', 'german', 'hungarian', 'italian', 'norwegian', 'portuguese', 'romanian', 'russian', 'spanish', 'swedish']
    accents: Literal['drop', 'keep']

def prepare(
    *,
    output_dir: _Path,
    segments: _SegmentsOption | _SegmentsConfig | None = None,
    held_out_prob: float = 0.01,
    strict: bool = False,
    shard_tokens: int = 134217728,
    num_workers: int | Literal['auto'] = 'auto',
    part_bytes: int = 8388608,
    shard: str | None = None,
    merge: Sequence[_Path] | None = None,
    seed: int = 12345,
    dump: _Path | None = None,
    overwrite: bool = False,
    corpus: _Rows | _CorpusOption | _CorpusConfig = 'files',
    tokenizer: _TokenizerOption | _TokenizerConfig = 'wordpiece',
    masking: str | _MaskingConfig = 'bert',
) -> Run:
    """Turn text into a prepared dataset.

    >>> data = bertkit.prepare(corpus={"path": "books.txt"}, tokenizer={"vocab_size": 300}, output_dir="books")

    Args:
        segments: google: fixed instances; the other options belong to pretrain
        shard_tokens: tokens per shard file; 256 MiB at two bytes per token
        part_bytes: text in one portion: half a second of work; a kill loses at most the current portions
        seed: for the instances of segments=google. Source: google-research/bert create_pretraining_data.py, lines 49-65
        dump: with segments=google: also write the instances as JSON lines with the original's field names
        overwrite: True: replace an existing dump
        corpus: one of files, hub, python_docs; or a mapping of settings, with the option as `name`; or texts, each a document, in a list, a column, a data frame, a `datasets.Dataset` or a generator
        tokenizer: one of bpe, unigram, wordpiece; or a mapping of settings, with the option as `name`
        masking: one of bert, ngram, whole_word; or a mapping of settings, with the option as `name`

    Returns:
        A run whose `directory` holds the dataset.
    """

def pretrain(
    data_dir: _Path,
    *,
    output_dir: _Path | None = None,
    overwrite: bool = False,
    model_dir: _Path | None = None,
    objective: str = 'auto',
    objective_options: dict[str, Any] = ...,
    pooling: str = 'first',
    feed_forward: _FeedForwardConfig = ...,
    init_moments: bool = False,
    steps: int | Literal['auto'] = 'auto',
    num_epochs: float | None = None,
    freeze: Literal['embeddings', 'encoder'] | str | None = None,
    seed: int = 0,
    kernels: Literal['auto', 'plain'] = 'auto',
    compile: bool | Literal['auto'] = 'auto',
    recompute: Literal['none', 'layers'] = 'none',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    plugins: Sequence[str] = [],
    reproducibility: Literal['default', 'strict'] = 'default',
    final_phase: _FinalPhaseConfig = ...,
    batch: _BatchConfig = ...,
    checkpoint: _CheckpointConfig = ...,
    evaluation: _EvaluationConfig = ...,
    log: _LogConfig = ...,
    numerics: _NumericsConfig = ...,
    resume: _ResumeConfig = ...,
    data: _SkipConfig = ...,
    attention: _AttentionOption | _AttentionConfig = 'bert',
    norm: str | _NormConfig = 'post',
    segments: _SegmentsOption | _SegmentsConfig = 'pairs',
    masking: str | _MaskingConfig = 'bert',
    optimizer: str | _OptimizerConfig = 'adamw',
    model: _ModelOption | _BertShape = 'tiny',
    schedule: str | _ScheduleConfig = 'linear',
    launch: _LaunchOption | _LaunchConfig = 'workers',
    experiment: _ExperimentOption | None = None,
) -> Run:
    """Pretrain BERT (masked language modelling and next sentence prediction) on a prepared dataset.

    >>> run = bertkit.pretrain(data_dir=data, model="tiny", steps=4, schedule={"warmup_steps": 1}, output_dir="tiny")
    >>> run.scores["mlm_loss"] > 0, run.metrics[0]["step"], run.report.name
    (True, 1, 'report.html')

    Args:
        output_dir: where the run is kept; None: below runs/, under a name that is made from the settings
        overwrite: True: replace another run in output_dir, which is kept until the new one has a checkpoint
        model_dir: any model directory to start from; its shape replaces model=
        objective: masked_lm, or next_token: each token predicts the next one, with attention.pattern=causal; auto: next_token with that pattern; or a plug-in (recipes/extend)
        objective_options: of a plug-in's objective
        init_moments: True: also start from the optimizer moments of model_dir; the count of updates restarts, as in NVIDIA's code
        num_epochs: passes over the text, instead of steps=
        freeze: with model_dir=: embeddings, encoder (embeddings and all layers) or layers:K (embeddings and the lowest K layers); frozen parts have no dropout
        kernels: plain: torch.nn.functional only; see bertkit/kernels/fast.py
        compile: torch.compile for the layers; auto: on CUDA only, since on a CPU it gains nothing and needs a C++ compiler (bertkit/model/layers.py)
        plugins: modules with plug-ins, such as [my_module]; recipes/extend has examples
        reproducibility: rounding may depend on the number of processes; strict: the same bits for 1, 2, 4, ... processes (slower by less than 1 %)
        attention: one of bert, deberta, modern, mpnet, transformer; or a mapping of settings, with the option as `name`
        norm: one of modern, post, pre; or a mapping of settings, with the option as `name`
        segments: one of full_sentences, google, pairs; or a mapping of settings, with the option as `name`
        masking: one of bert, ngram, whole_word; or a mapping of settings, with the option as `name`
        optimizer: one of adamw, lamb; or a mapping of settings, with the option as `name`
        model: one of albert_mini, base, deberta_mini, electra_mini, eurobert_mini, large, medium, mini, modern_base, modern_mini, modern_small, modern_tiny, roberta_mini, small, tiny; or a mapping of settings, with the option as `name`
        schedule: one of constant, cosine, google, linear, noam, polynomial, wsd; or a mapping of settings, with the option as `name`
        launch: a mapping of settings, with the option as `name`
        experiment: one of attention_zoo, bert_base, bert_large_lamb_phase1, bert_large_lamb_phase2, continue_pretraining, language_model, quickstart; or a mapping of settings, with the option as `name`

    Returns:
        A run with a `model_dir` that `transformers` loads too.
    """

def finetune(
    train: _Rows | _Path | None = None,
    model_dir: _Path | None = None,
    *,
    task: _TaskOption | _TaskConfig,
    dev: _Rows | _Path | None = None,
    data_dir: _Path | None = None,
    output_dir: _Path | None = None,
    overwrite: bool = False,
    num_epochs: float | Literal['auto'] = 'auto',
    dev_share: float | None = None,
    class_weights: Literal['balanced'] | Sequence[float] | None = None,
    objective: str = 'auto',
    objective_options: dict[str, Any] = ...,
    calibrate: bool = False,
    seed: int = 0,
    kernels: Literal['auto', 'plain'] = 'auto',
    compile: bool | Literal['auto'] = 'auto',
    recompute: Literal['none', 'layers'] = 'none',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    reproducibility: Literal['default', 'strict'] = 'default',
    plugins: Sequence[str] = [],
    head: _HeadConfig = ...,
    freeze: Literal['embeddings', 'encoder'] | str | None = None,
    reinit_layers: int = 0,
    layer_decay: float = 1.0,
    max_train_examples: int | None = None,
    batch: _BatchConfig = ...,
    optimizer: str | _OptimizerConfig = 'adamw',
    schedule: str | _ScheduleConfig = 'linear',
    checkpoint: _EpochCheckpointConfig = ...,
    evaluation: _DevEvaluationConfig = ...,
    log: _LogConfig = ...,
    numerics: _NumericsConfig = ...,
    data: _SkipConfig = ...,
    resume: _ResumeConfig = ...,
    launch: _LaunchOption | _LaunchConfig = 'workers',
    decoder: _DecoderOption | _DecoderSettings | None = None,
    attention: _AttentionOption | _AttentionConfig | None = None,
    norm: str | _NormConfig | None = None,
    model: _ModelOption | _BertShape | None = None,
    tokenizer: _TokenizerOption | _TokenizerConfig | None = None,
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> Run:
    """Fine-tune a model on a task.

    >>> rows = [{"review": "a good day", "label": "good"}, {"review": "a bad day", "label": "bad"}]
    >>> task = {"task": "sequence", "text_column": "review", "model_dir": run}
    >>> stars = bertkit.finetune(rows * 8, dev=rows, num_epochs=1, output_dir="stars", **task)
    >>> 0 <= stars.scores["accuracy"] <= 1
    True

    Args:
        task: one of ax, choice, classification, cola, conll2003, generation, minimal_pairs, mnli, mrpc, ner, pos, qa, qnli, qqp, regression, rte, sequence, spans, squad1, squad2, sst2, stsb, swag, tagging, translation, wnli; or a mapping of settings, with the option as `name`
        train: the rows: mappings, a data frame or a `datasets.Dataset`; or a file; None to read data_dir
        dev: for the evaluation, rows: mappings, a data frame or a `datasets.Dataset`; or a file; None to read data_dir, or with dev_share
        model_dir: any model; None with decoder=transformer or decoder=rnn
        output_dir: where the run is kept; None: below runs/, under a name that is made from the settings
        overwrite: True: replace another run in output_dir, which is kept until the new one has a checkpoint
        objective: the loss of the task, or a plug-in such as distillation (recipes/extend)
        objective_options: of a plug-in's objective
        kernels: plain: torch.nn.functional only; see bertkit/kernels/fast.py
        compile: torch.compile for the layers; auto: on CUDA only, since on a CPU it gains nothing and needs a C++ compiler (bertkit/model/layers.py)
        reproducibility: rounding may depend on the number of processes; strict: the same bits for 1, 2, 4, ... processes (slower by less than 1 %)
        plugins: modules with plug-ins, such as [my_module]; recipes/extend has examples
        freeze: embeddings, encoder (embeddings and all layers) or layers:K (embeddings and the lowest K layers); frozen parts have no dropout
        reinit_layers: number of top layers to reinitialise, together with the pooler (Zhang et al. 2021, 5)
        layer_decay: ratio between the learning rates of a layer and the layer above it (Clark et al. 2020, A: 0.8)
        max_train_examples: only the first examples of the file
        optimizer: one of adamw, lamb; or a mapping of settings, with the option as `name`
        schedule: one of constant, cosine, google, linear, noam, polynomial, wsd; or a mapping of settings, with the option as `name`
        launch: a mapping of settings, with the option as `name`
        decoder: one of bert, rnn, transformer; or a mapping of settings, with the option as `name`
        attention: one of bert, deberta, modern, mpnet, transformer; or a mapping of settings, with the option as `name`
        norm: one of modern, post, pre; or a mapping of settings, with the option as `name`
        model: one of albert_mini, base, deberta_mini, electra_mini, eurobert_mini, large, medium, mini, modern_base, modern_mini, modern_small, modern_tiny, roberta_mini, small, tiny; or a mapping of settings, with the option as `name`
        tokenizer: one of bpe, unigram, wordpiece; or a mapping of settings, with the option as `name`
        text_column: the column of the text: a name, or a number from 0
        text_pair_column: the column of the second text
        label_column: the column of the labels

    Returns:
        A run with the model that has the best score in the task's metric.
    """

def glue(
    model_dir: _Path | None = None,
    *,
    data_dir: _Path | None = None,
    output_dir: _Path | None = None,
    tasks: Sequence[str] = ['cola', 'sst2', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte', 'wnli', 'ax'],
    seeds: Sequence[int] = [0, 1, 2, 3, 4],
    together: bool = False,
    check: _Path | None = None,
    overwrite: bool = False,
    num_epochs: float | Literal['auto'] = 'auto',
    dev_share: float | None = None,
    class_weights: Literal['balanced'] | Sequence[float] | None = None,
    objective: str = 'auto',
    objective_options: dict[str, Any] = ...,
    calibrate: bool = False,
    kernels: Literal['auto', 'plain'] = 'auto',
    compile: bool | Literal['auto'] = 'auto',
    recompute: Literal['none', 'layers'] = 'none',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    reproducibility: Literal['default', 'strict'] = 'default',
    plugins: Sequence[str] = [],
    head: _HeadConfig = ...,
    freeze: Literal['embeddings', 'encoder'] | str | None = None,
    reinit_layers: int = 0,
    layer_decay: float = 1.0,
    max_train_examples: int | None = None,
    batch: _BatchConfig = ...,
    optimizer: str | _OptimizerConfig = 'adamw',
    schedule: str | _ScheduleConfig = 'linear',
    checkpoint: _EpochCheckpointConfig = ...,
    evaluation: _DevEvaluationConfig = ...,
    log: _LogConfig = ...,
    numerics: _NumericsConfig = ...,
    data: _SkipConfig = ...,
    resume: _ResumeConfig = ...,
    launch: _LaunchOption | _LaunchConfig = 'workers',
    decoder: _DecoderOption | _DecoderSettings | None = None,
    attention: _AttentionOption | _AttentionConfig | None = None,
    norm: str | _NormConfig | None = None,
    model: _ModelOption | _BertShape | None = None,
    tokenizer: _TokenizerOption | _TokenizerConfig | None = None,
) -> Run:
    """Fine-tune on all of GLUE.

    >>> bertkit.glue(model_dir=run, data_dir="glue", tasks=["rte"], seeds=[0], output_dir="glue-runs")  # doctest: +SKIP

    Args:
        tasks: ax has no training data; the best model for mnli predicts it
        seeds: scores on small tasks vary widely between seeds (Dodge et al. 2020); the submission uses the seed with the best dev score
        check: an archive to check, against the test files in data_dir if it is set
        overwrite: True: replace another run in output_dir, which is kept until the new one has a checkpoint
        objective: the loss of the task, or a plug-in such as distillation (recipes/extend)
        objective_options: of a plug-in's objective
        kernels: plain: torch.nn.functional only; see bertkit/kernels/fast.py
        compile: torch.compile for the layers; auto: on CUDA only, since on a CPU it gains nothing and needs a C++ compiler (bertkit/model/layers.py)
        reproducibility: rounding may depend on the number of processes; strict: the same bits for 1, 2, 4, ... processes (slower by less than 1 %)
        plugins: modules with plug-ins, such as [my_module]; recipes/extend has examples
        freeze: embeddings, encoder (embeddings and all layers) or layers:K (embeddings and the lowest K layers); frozen parts have no dropout
        reinit_layers: number of top layers to reinitialise, together with the pooler (Zhang et al. 2021, 5)
        layer_decay: ratio between the learning rates of a layer and the layer above it (Clark et al. 2020, A: 0.8)
        max_train_examples: only the first examples of the file
        optimizer: one of adamw, lamb; or a mapping of settings, with the option as `name`
        schedule: one of constant, cosine, google, linear, noam, polynomial, wsd; or a mapping of settings, with the option as `name`
        launch: a mapping of settings, with the option as `name`
        decoder: one of bert, rnn, transformer; or a mapping of settings, with the option as `name`
        attention: one of bert, deberta, modern, mpnet, transformer; or a mapping of settings, with the option as `name`
        norm: one of modern, post, pre; or a mapping of settings, with the option as `name`
        model: one of albert_mini, base, deberta_mini, electra_mini, eurobert_mini, large, medium, mini, modern_base, modern_mini, modern_small, modern_tiny, roberta_mini, small, tiny; or a mapping of settings, with the option as `name`
        tokenizer: one of bpe, unigram, wordpiece; or a mapping of settings, with the option as `name`

    Returns:
        A run whose `scores` are the summary of all tasks.
    """

@overload
def predict(
    model_dir: _Path,
    input: _Rows | _Path | None = None,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    output: None = None,
    carry_input: bool = False,
    overwrite: bool = False,
    task: _TaskOption | _TaskConfig | None = None,
    format: Literal['text', 'words', 'tsv', 'csv', 'jsonl', 'json', 'squad', 'conll', 'conllu', 'parquet', 'xlsx', 'label_text'] | None = None,
    top_k: int = 5,
    kernels: Literal['auto', 'plain'] = 'auto',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> list[dict[str, Any]]:
    """Predict with a fine-tuned model.

    >>> predictions = bertkit.predict(stars, ["a good day", "a bad day"])
    >>> sorted(predictions[0]["probabilities"])
    ['bad', 'good']

    Args:
        input: a file; or texts, pairs or rows in a list, a column, a data frame, a `datasets.Dataset` or a generator
        task: one of ax, choice, classification, cola, conll2003, generation, minimal_pairs, mnli, mrpc, ner, pos, qa, qnli, qqp, regression, rte, sequence, spans, squad1, squad2, sst2, stsb, swag, tagging, translation, wnli; or a mapping of settings, with the option as `name`
        kernels: auto: the fast kernels in bertkit/kernels/fast.py; plain: torch.nn.functional only
        text_column: the column of the text: a name, or a number from 0
        text_pair_column: the column of the second text
        label_column: the column of the labels

    Returns:
        A mapping for each input; with `output`, a run that names the file.
    """
@overload
def predict(
    model_dir: _Path,
    input: _Rows | _Path | None = None,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    output: _Path,
    carry_input: bool = False,
    overwrite: bool = False,
    task: _TaskOption | _TaskConfig | None = None,
    format: Literal['text', 'words', 'tsv', 'csv', 'jsonl', 'json', 'squad', 'conll', 'conllu', 'parquet', 'xlsx', 'label_text'] | None = None,
    top_k: int = 5,
    kernels: Literal['auto', 'plain'] = 'auto',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> Run:
    ...

@overload
def embed(
    model_dir: _Path,
    input: _Rows | _Path,
    *,
    output: None = None,
    overwrite: bool = False,
    pooling: Literal['mean', 'cls', 'max'] | None = None,
    normalize: bool | None = None,
    text_column: str | int | None = None,
    format: Literal['text', 'csv', 'tsv', 'jsonl', 'json', 'parquet', 'xlsx'] | None = None,
    max_seq_length: int | None = None,
    batch_tokens: int | None = None,
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
) -> NDArray[np.float32]:
    """Turn texts into vectors, for search, clustering and finding duplicates.

    >>> bertkit.embed(model_dir=run, input=["a good day", "a bad day"], pooling="mean").shape
    (2, 128)

    Args:
        input: a file; or texts, pairs or rows in a list, a column, a data frame, a `datasets.Dataset` or a generator
        overwrite: True: replace an existing file
        pooling: mean of all tokens, cls (the first token), or max of each element; None: the pooling of the directory, else mean
        normalize: True: vectors of length 1; None: the choice of a sentence-transformers directory, else True
        text_column: the column of a table: a name, or a number from 0; None: text, sentence or sentence1
        format: text, csv, tsv, jsonl, json or parquet; None: detected from the ending, else from the first lines
        max_seq_length: tokens per text, with [CLS] and [SEP]; None: the length in the directory, else the model's maximum
        batch_tokens: tokens in one forward pass; None: 2048 on a CPU, 65536 on a GPU
        precision: bf16 or fp16: matrix products in bfloat16 or float16; on a CPU bf16 pays on AMD since Zen 4 and on Intel with AMX only

    Returns:
        The vectors, float32 (n, D); with `output`, a run that names the file.
    """
@overload
def embed(
    model_dir: _Path,
    input: _Rows | _Path,
    *,
    output: _Path,
    overwrite: bool = False,
    pooling: Literal['mean', 'cls', 'max'] | None = None,
    normalize: bool | None = None,
    text_column: str | int | None = None,
    format: Literal['text', 'csv', 'tsv', 'jsonl', 'json', 'parquet', 'xlsx'] | None = None,
    max_seq_length: int | None = None,
    batch_tokens: int | None = None,
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
) -> Run:
    ...

def evaluate(
    model_dir: _Path,
    data: _Rows | _Path | None = None,
    *,
    task: _TaskOption | _TaskConfig | None = None,
    data_dir: _Path | None = None,
    split: str = 'auto',
    seed: int = 0,
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    max_sequences: int | None = None,
    batch_sequences: int = 32,
    segments: _SegmentsOption | _SegmentsConfig = 'pairs',
    masking: str | _MaskingConfig = 'bert',
    launch: _LaunchOption | _LaunchConfig = 'workers',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> Run:
    """Measure a model.

    >>> bertkit.evaluate(stars, rows).scores["num_examples"]
    2

    Args:
        task: one of ax, choice, classification, cola, conll2003, generation, minimal_pairs, mnli, mrpc, ner, pos, qa, qnli, qqp, regression, rte, sequence, spans, squad1, squad2, sst2, stsb, swag, tagging, translation, wnli; or a mapping of settings, with the option as `name`
        split: for a task: train, dev (auto), test, dev_mismatched; for a dataset: train, all, held_out; auto: held_out if the model was trained on the dataset, else all
        seed: for the pairs and masks
        precision: bf16 or fp16: matrix products in bfloat16 or float16; on a CPU bf16 pays on AMD since Zen 4 and on Intel with AMX only
        max_sequences: of a prepared dataset; None: all
        batch_sequences: sequences in one forward pass, for a prepared dataset
        segments: one of full_sentences, google, pairs; or a mapping of settings, with the option as `name`
        masking: one of bert, ngram, whole_word; or a mapping of settings, with the option as `name`
        launch: a mapping of settings, with the option as `name`
        data: labelled rows: mappings, a data frame or a `datasets.Dataset`; or a file; None to read data_dir
        text_column: the column of the text: a name, or a number from 0
        text_pair_column: the column of the second text
        label_column: the column of the labels

    Returns:
        A run that has only `scores`.
    """

def compare(
    *runs: _Path | Sequence[_Path],
    output: _Path = 'compare.html',
    overwrite: bool = False,
) -> Run:
    """Compare runs.

    >>> bertkit.compare(run, stars, output="compare.html").report.name
    'compare.html'

    Args:
        runs: the directories; `runs=` can be left out, as in the first example
        output: the page; an earlier one is replaced
        overwrite: True: replace another file

    Returns:
        A run: its `report` is the page, and its `scores` hold the scores of each run by name.
    """

@overload
def view(
    model_dir: _Path,
    text: str | None = None,
    *,
    input: _Rows | _Path | None = None,
    text_pair: str | None = None,
    positions: bool = False,
    row: int = 1,
    output: None = None,
    overwrite: bool = False,
    task: _TaskOption | _TaskConfig | None = None,
    format: Literal['text', 'words', 'tsv', 'csv', 'jsonl', 'json', 'squad', 'conll', 'conllu', 'parquet', 'xlsx', 'label_text'] | None = None,
    target: str | int | None = None,
    steps: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    target_text: str | None = None,
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> str:
    """Look inside a model for one input.

    >>> type(bertkit.view(stars, "a good day", steps=0)).__name__
    'Page'

    Args:
        input: a file; or texts, pairs or rows in a list, a column, a data frame, a `datasets.Dataset` or a generator
        positions: True: show the positions of the encoder, without an input
        row: the example of input=, from 1
        output: None: the page is returned
        overwrite: True: replace an existing file
        task: None: the model's own task, else the general task for its head; task.* changes its settings
        format: the format of input=; None: detected from the ending, else from the first lines
        layer: for .svg and .png, from 1: with head=, this head alone
        head: from 1
        target_text: for an encoder-decoder: show the alignment of this text instead of the generated one
        text_column: the column of the text: a name, or a number from 0
        text_pair_column: the column of the second text
        label_column: the column of the labels

    Returns:
        The page, which a notebook shows; with `output`, a run that names the file.
    """
@overload
def view(
    model_dir: _Path,
    text: str | None = None,
    *,
    input: _Rows | _Path | None = None,
    text_pair: str | None = None,
    positions: bool = False,
    row: int = 1,
    output: _Path,
    overwrite: bool = False,
    task: _TaskOption | _TaskConfig | None = None,
    format: Literal['text', 'words', 'tsv', 'csv', 'jsonl', 'json', 'squad', 'conll', 'conllu', 'parquet', 'xlsx', 'label_text'] | None = None,
    target: str | int | None = None,
    steps: int | None = None,
    layer: int | None = None,
    head: int | None = None,
    target_text: str | None = None,
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> Run:
    ...

def serve(
    model_dir: _Path | Sequence[_Path],
    *,
    index: _Path | None = None,
    candidates: int | None = None,
    both: _BothConfig | None = None,
    glossary: _Path | None = None,
    translate: _Path | None = None,
    encoder: str | None = None,
    host: str = '127.0.0.1',
    hosts: Sequence[str] = [],
    token: str | None = None,
    port: int = 8000,
    workers: int = 1,
    queue_requests: int = 256,
    max_body_bytes: int = 1000000,
    max_inputs: int = 256,
    max_tokens: int = 32768,
    batch_tokens: int | None = None,
    request_seconds: float = 30,
    max_view_tokens: int = 256,
    top_k: int = 5,
    log_inputs: bool = False,
    kernels: Literal['auto', 'plain'] = 'auto',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
) -> None:
    """Serve models on this machine.

    >>> bertkit.serve(model_dir=stars, port=8000)  # doctest: +SKIP

    Args:
        candidates: passages per question for the reader (the model); None: as in conf/search.yaml
        both: the weights that `bertkit search fit=True` printed: both='{search: 0.6, bert: 0.43, bias: -5.3}'; None: as in conf/search.yaml
        glossary: as in search
        translate: as in search
        encoder: as in search
        max_body_bytes: maximum size of a request: about twenty book chapters
        max_inputs: maximum number of inputs in a request; split larger jobs, so that other clients do not wait long
        batch_tokens: tokens in one forward pass, from several requests; None: 2048 on a CPU, 65536 on a GPU, as in predict
        max_view_tokens: maximum number of tokens of an input, or of one window of it, for /view; more: status 413
        kernels: auto: the fast kernels in bertkit/kernels/fast.py; plain: torch.nn.functional only

    Returns:
        Only after the server is stopped.
    """

def index(
    *,
    output: _Path,
    model_dir: _Path | None = None,
    vectors: Literal['float32', 'int8'] = 'float32',
    remove: bool = False,
    passages: _PassagesConfig = ...,
    corpus: _CorpusOption | _CorpusConfig = 'files',
) -> Run:
    """Build a library of passages for full-text search, for `bertkit search` and `bertkit serve index=`.

    >>> library = bertkit.index(corpus={"path": "books.txt"}, output="library.db")

    Args:
        model_dir: an encoder, such as sentence-transformers/all-MiniLM-L6-v2, for order=vectors and order=hybrid; None: no vectors
        vectors: int8: a quarter of the size, in the file and in memory, for the same accuracy at 1, 5 and 20 on XQuAD (recipes/search_qa)
        remove: True: remove documents whose files are no longer in the corpus
        corpus: one of files, hub, python_docs; or a mapping of settings, with the option as `name`

    Returns:
        A run whose `output` is the library.
    """

@overload
def search(
    index: _Path,
    question: str | None = None,
    *,
    model_dir: _Path | None = None,
    where: Sequence[str] = [],
    input: _Rows | _Path | None = None,
    output: None = None,
    overwrite: bool = False,
    order: Literal['search', 'vectors', 'hybrid', 'bert', 'both', 'all'] | None = None,
    encoder: str | None = None,
    top_k: int = 10,
    candidates: int = 20,
    both: _BothConfig = ...,
    fit: bool = False,
    glossary: _Path | None = None,
    translate: _Path | None = None,
    max_questions: int | None = None,
    task: _TaskOption | _TaskConfig | None = None,
    kernels: Literal['auto', 'plain'] = 'auto',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> list[dict[str, Any]]:
    """Find passages for questions in a library, ranked by the search engine, by vectors, by BERT, or by several, with the answers marked.

    >>> (found,) = bertkit.search(index=library, question="kan lon")
    >>> found["question"]
    'kan lon'

    Args:
        where: only documents with these values in the columns of their records: lang=de, or [lang=de,year=2020]
        input: a file; or texts, pairs or rows in a list, a column, a data frame, a `datasets.Dataset` or a generator
        overwrite: True: replace an existing file
        encoder: the model that made the library's vectors, if it is not where it was
        top_k: passages in the output
        fit: True: fit both.* to the labels of the input
        glossary: a TSV file; each row has a word or more, and words to add to a question that contains them, such as translations
        translate: a model fine-tuned with task=translation; its translation adds words to a question, and the reader reads the question itself
        max_questions: only the first questions of the input
        task: None: the model's own task; task.* changes its settings
        kernels: auto: the fast kernels in bertkit/kernels/fast.py; plain: torch.nn.functional only
        precision: bf16 or fp16: matrix products in bfloat16 or float16; on a CPU bf16 pays on AMD since Zen 4 and on Intel with AMX only
        text_column: the column of the text: a name, or a number from 0
        text_pair_column: the column of the second text
        label_column: the column of the labels

    Returns:
        A mapping with the passages for each question; with `output`, a run that names the file.
    """
@overload
def search(
    index: _Path,
    question: str | None = None,
    *,
    model_dir: _Path | None = None,
    where: Sequence[str] = [],
    input: _Rows | _Path | None = None,
    output: _Path,
    overwrite: bool = False,
    order: Literal['search', 'vectors', 'hybrid', 'bert', 'both', 'all'] | None = None,
    encoder: str | None = None,
    top_k: int = 10,
    candidates: int = 20,
    both: _BothConfig = ...,
    fit: bool = False,
    glossary: _Path | None = None,
    translate: _Path | None = None,
    max_questions: int | None = None,
    task: _TaskOption | _TaskConfig | None = None,
    kernels: Literal['auto', 'plain'] = 'auto',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> Run:
    ...

def export(
    model_dir: _Path,
    output_dir: _Path,
    *,
    head: Literal['pretraining', 'masked_lm', 'encoder', 'task'] | None = None,
    google: bool = False,
    onnx: bool | Literal['int8'] = False,
    sentence_transformers: bool | Literal['mean', 'cls'] = False,
    license: str | None = None,
    language: str | None = None,
) -> Run:
    """Write a model that plain transformers (4.30 to 5) loads; it is reloaded there and verified numerically.

    >>> bertkit.export(stars, "stars-export", head="task").model_dir.name
    'stars-export'

    Args:
        head: pretraining, masked_lm, encoder, or task; None: all heads of the checkpoint
        google: True: also bert_config.json and bert_model.ckpt.*, in the format of google-research/bert
        onnx: True: also onnx/model.onnx, verified with onnxruntime (needs pip install '.[onnx]' in the directory of bertkit); int8: also
        sentence_transformers: True: also the files of sentence-transformers, with the model's own pooling; mean or cls: with this pooling instead
        license: for the model card
        language: for the model card, such as en

    Returns:
        A run whose `model_dir` is the exported directory.
    """

def verify(
    model_dir: _Path,
    *,
    output: _Path | None = None,
    overwrite: bool = False,
    seed: int = 0,
    sequences: int = 5,
) -> Run:
    """Compare a model with the Hugging Face implementation.

    >>> bertkit.verify(model_dir=stars, sequences=1).scores["within_tolerance"]
    True

    Args:
        overwrite: True: replace an existing certificate instead of comparing with it
        seed: for the random test sequences
        sequences: number of test sequences, of different lengths, with padding and two segments

    Returns:
        A run whose `scores` are the certificate.
    """

def load_predictor(
    model_dir: _Path,
    *,
    task: _TaskOption | _TaskConfig | None = None,
    top_k: int = 5,
    kernels: Literal['auto', 'plain'] = 'auto',
    precision: Literal['fp32', 'bf16', 'fp16'] = 'fp32',
    device: Literal['auto', 'cpu', 'cuda'] = 'auto',
    text_column: str | int | None = None,
    text_pair_column: str | int | None = None,
    label_column: str | int | None = None,
) -> LoadedPredictor:
    """Load a model for prediction from Python, with the settings of `bertkit predict`.

    >>> predictor = bertkit.load_predictor(stars)
    >>> sorted(predictor("a good day")["probabilities"])
    ['bad', 'good']
    >>> predictor.logits(["a good day", "a bad day"]).shape
    (2, 2)

    Raises:
        InputError: the model has no prediction head, or a setting is wrong.
    """

@overload
def masking(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def masking(made: _Made) -> _Made:
    """Add a function or class as an option of the setting masking.kind."""

@overload
def head(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def head(made: _Made) -> _Made:
    """Add a function or class as an option of the setting head.kind."""

@overload
def model_head(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def model_head(made: _Made) -> _Made:
    """Add a function or class as an option of the setting heads."""

@overload
def head_loss(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def head_loss(made: _Made) -> _Made:
    """Add a function or class as an option of the setting heads."""

@overload
def score(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def score(made: _Made) -> _Made:
    """Add a function or class as an option of the setting attention.score."""

@overload
def positions(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def positions(made: _Made) -> _Made:
    """Add a function or class as an option of the setting attention.positions."""

@overload
def pattern(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def pattern(made: _Made) -> _Made:
    """Add a function or class as an option of the setting attention.pattern."""

@overload
def feed_forward(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def feed_forward(made: _Made) -> _Made:
    """Add a function or class as an option of the setting feed_forward.kind."""

@overload
def encoder(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def encoder(made: _Made) -> _Made:
    """Add a function or class as an option of the setting model.encoder."""

@overload
def pooler(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def pooler(made: _Made) -> _Made:
    """Add a function or class as an option of the setting pooling."""

@overload
def schedule(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def schedule(made: _Made) -> _Made:
    """Add a function or class as an option of the setting schedule.decay."""

@overload
def optimizer(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def optimizer(made: _Made) -> _Made:
    """Add a function or class as an option of the setting optimizer.name."""

@overload
def objective(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def objective(made: _Made) -> _Made:
    """Add a function or class as an option of the setting objective."""

@overload
def metric(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def metric(made: _Made) -> _Made:
    """Add a function or class as an option of the setting task.metrics."""

@overload
def task(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def task(made: _Made) -> _Made:
    """Add a function or class as an option of the setting task.kind."""

@overload
def prediction_format(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def prediction_format(made: _Made) -> _Made:
    """Add a function or class as an option of the setting output."""

@overload
def vector_format(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def vector_format(made: _Made) -> _Made:
    """Add a function or class as an option of the setting output."""

@overload
def passage_format(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def passage_format(made: _Made) -> _Made:
    """Add a function or class as an option of the setting output."""

@overload
def architecture(name: str = ...) -> Callable[[_Made], _Made]: ...

@overload
def architecture(made: _Made) -> _Made:
    """Add a function or class as an option of the setting model_type."""
