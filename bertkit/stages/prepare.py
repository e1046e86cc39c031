"""Stage: turn text into a tokenizer and a prepared dataset on disk, and print what it is."""

from pathlib import Path

from bertkit.base.errors import InputError, say
from bertkit.data.batches.description import describe
from bertkit.data.batches.instances import json_rows, open_instances
from bertkit.data.corpus.prepared import open_prepared
from bertkit.jobs.preparation import merge_shards, prepare
from bertkit.run.outputs import check_output, opened_output
from bertkit.settings.prepare import PrepareSettings


def run(settings: PrepareSettings) -> None:
    """Prepare a dataset, a shard of one, or one from its shards; or print that it is done."""
    output_dir, dump = Path(settings.output_dir), settings.dump
    if dump is not None:
        _check_dump(dump, output_dir, settings.overwrite)
    is_new = merge_shards(settings, output_dir) if settings.merge is not None else prepare(settings, output_dir)
    if not is_new:
        say(f"done already: {output_dir} holds this {'dataset' if settings.shard is None else 'shard'}")
    elif settings.shard is not None:
        say(f"prepared shard {settings.shard} in {output_dir}; merge= makes a dataset of all shards")
    else:
        say(*describe(open_prepared(output_dir)).split("\n"), "", f"prepared dataset in {output_dir}")
    if dump is not None:
        dataset = open_prepared(output_dir)
        instances = open_instances(dataset)
        with opened_output(dump) as file:
            file.writelines(json_rows(instances, dataset.tokenizer.vocab))
        say(f"{len(instances):,} instances as JSON lines in {dump}")


def _check_dump(dump: str, output_dir: Path, overwrite: bool) -> None:
    """Refuse a dump file that cannot be written, or that is inside the dataset's directory or one of its parents."""
    path, output_dir = Path(dump).resolve(), output_dir.resolve()
    if not dump:
        raise InputError("dump= is empty; expected a file to write")
    if output_dir in (path, *path.parents) or path in output_dir.parents:
        raise InputError(f"dump={dump} is in output_dir={output_dir} or above it; expected a file elsewhere")
    check_output(dump, overwrite, "dump")
