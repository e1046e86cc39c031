"""Stage: find passages for questions, and with a reader (a question answering model) the answers in them; compute metrics."""

import contextlib
import json
import sys
from typing import cast

from bertkit.apps.retrieval.judging import PassageFormat
from bertkit.apps.retrieval.rankings import Rankings, answer_of, open_searcher, warn_of_cut
from bertkit.apps.retrieval.readable import readable
from bertkit.base import plugins
from bertkit.base.errors import counted, say, warn
from bertkit.base.text_files import JsonObject
from bertkit.base.typed_settings import refuse
from bertkit.run.outputs import check_outputs, opened_output
from bertkit.settings.search import SearchSettings
from bertkit.tasks.reading.writers import write_lines

ORDERS = ("search", "vectors", "hybrid", "bert", "both")


def values(settings: SearchSettings, inputs: object = None) -> list[JsonObject]:
    """Search for one question, or for many, from Python or else those of `settings`; return the answers to each."""
    searcher = open_searcher(settings)
    if settings.question is not None:
        found = [answer_of(settings, searcher, settings.question)]
    else:
        found = [ranking.row() for ranking in Rankings(settings, searcher, inputs, False).each(is_silent=True)]
    warn_of_cut(searcher)
    return found


def run(settings: SearchSettings, inputs: object = None) -> None:
    """Search the library, write the answers, and print them or their metrics."""
    to_file, output_format = settings.output != "-", _format_of(settings)
    check_outputs(settings.output, settings.input, settings.overwrite)
    searcher = open_searcher(settings)
    if settings.question is not None:
        answer = answer_of(settings, searcher, settings.question)
        warn_of_cut(searcher)
        if to_file:
            with opened_output(settings.output) as file:
                write_lines(file, [answer])
        else:
            say(*readable(answer, [] if searcher.library.has(settings.where) else settings.where))
        return
    rankings = Rankings(settings, searcher, inputs, bool(output_format.one_order))
    with contextlib.ExitStack() as stack:
        file = sys.stdout
        if to_file:
            file = stack.enter_context(opened_output(settings.output, is_binary=output_format.is_binary))
        writer = stack.enter_context(output_format(file, settings.top_k))
        for ranking in rankings.each(is_silent=not to_file):
            writer.put(ranking)
    warn_of_cut(searcher)
    if output_format.one_order and (shared := searcher.library.shared_ids()):
        several = f"{counted(len(shared), 'id')} {'is' if len(shared) == 1 else 'are each'} of several documents"
        warn(f"{several}, such as {shared[0]!r:.80}: {output_format.one_order} counts these as one")
    if rankings.metrics.num_labelled:
        metrics = json.dumps(rankings.metrics.summary(), indent=2)
        say(*metrics.split("\n"), file=sys.stdout if to_file else sys.stderr)
    if to_file:
        say(f"{counted(len(rankings.questions), 'question')} in {settings.output}", file=sys.stderr)


def _format_of(settings: SearchSettings) -> type[PassageFormat]:
    """Return the format of the output; raises InputError if it cannot hold what is asked for."""
    name = settings.ending if plugins.exists("passage_format", settings.ending) else ""
    chosen = cast(type[PassageFormat], plugins.get("passage_format", name))
    one = chosen.one_order
    refuse(
        one and settings.question is not None and f"output={settings.output}: {one} needs input=, a file of questions",
        one and settings.order == "all" and f"order=all: {one} has one order; choose {', '.join(ORDERS)}",
    )
    return chosen
