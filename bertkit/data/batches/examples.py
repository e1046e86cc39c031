"""Opens the examples of a prepared dataset: drawn from its text, or fixed instances; who uses them need not know which."""

from collections.abc import Sequence

from bertkit.base.errors import InputError
from bertkit.data.batches.instances import check_stored, has_instances, open_stored
from bertkit.data.batches.sampling import DatasetExamples, DrawnExamples
from bertkit.data.corpus.prepared import PreparedDataset
from bertkit.data.data_config import AnySegments, MaskingConfig


def open_examples(
    dataset: PreparedDataset,
    segments: AnySegments,
    masking: MaskingConfig,
    explicit_keys: Sequence[str],
    *,
    predicts_next_token: bool = False,
    draws_from_any: bool = False,
) -> DatasetExamples:
    """Open the examples for these settings, of which the user set `explicit_keys`.

    With `draws_from_any`, for an evaluation, a dataset of fixed instances gives those unless the user chose segments; then its
    text is used. Raises InputError if the dataset holds other examples than the settings ask for.
    """
    has_stored = has_instances(dataset)
    if segments.kind == "google" or (draws_from_any and has_stored and "segments" not in explicit_keys):
        if not has_stored:
            raise InputError(
                f"data_dir={dataset.directory}: no fixed instances; prepare it with segments=google, or set segments=pairs"
            )
        stored = open_stored(dataset)
        check_stored(dataset, stored, segments, masking, explicit_keys)
        return stored
    if has_stored and not draws_from_any:
        raise InputError(
            f"data_dir={dataset.directory} holds fixed instances; set segments=google, not segments={segments.kind}"
        )
    return DrawnExamples(dataset, segments, None if predicts_next_token else masking)
