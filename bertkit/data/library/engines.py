"""A question -> the passages that an engine finds: a library here, or OpenSearch or Solr on the network.

All three are asked by one small interface, `Engine`. What the two on the network keep is the user's: documents with the
fields text, title, source and place, of which text alone must be there.

Source: docs.opensearch.org, "Search API" and "Multi-match query" (Elasticsearch takes and gives the same);
solr.apache.org/guide, "Common Query Parameters", "The DisMax Query Parser" and "Response Writers".
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bertkit.data.library.library import Hit, Library
from bertkit.data.library.passages import words_of
from bertkit.errors import InputError
from bertkit.lines import TOO_LARGE, WHOLE_MB, parse_json, without_surrogates

SECONDS_TO_ANSWER = 30.0


class Engine(Protocol):
    """What finds passages."""

    def find(self, question: str, num_hits: int, more: Sequence[str] = (), *, fill: bool = False) -> list[Hit]:
        """Give the passages that fit a question and some more words best, the best first; with `fill`, where it can, all that are few."""
        ...


def open_engine(index: str) -> Engine:
    """Open a library, or an engine on the network: `opensearch+http://HOST:9200/INDEX`, `solr+http://HOST:8983/solr/CORE`.

    Raises:
        InputError: there is no such library, or the address is of no known kind.
    """
    if "://" not in index:
        return Library(Path(index).expanduser())
    parts = urllib.parse.urlsplit(index)
    kind, _, scheme = parts.scheme.partition("+")
    if (
        kind not in ("opensearch", "solr")
        or scheme not in ("http", "https")
        or not parts.hostname
        or not parts.path.strip("/")
    ):
        raise InputError(
            f"index={_without_password(index)}: expected a library, opensearch+http://HOST:9200/INDEX or "
            "solr+http://HOST:8983/solr/CORE (or +https)"
        )
    return (OpenSearch if kind == "opensearch" else Solr)(parts._replace(scheme=scheme))


class OpenSearch:
    """An index of OpenSearch or Elasticsearch."""

    answers = "hits.hits with _id, _score and _source.text"

    def __init__(self, address: urllib.parse.SplitResult) -> None:
        self._address = address

    def find(self, question: str, num_hits: int, more: Sequence[str] = (), *, fill: bool = False) -> list[Hit]:
        """Ask for the sum of the scores of text and title; the same words are looked for as in a library."""
        try:
            return self._find(" ".join(words_of(question, more)), num_hits)
        except (AttributeError, KeyError, TypeError) as error:
            raise InputError(
                f"{self._address.hostname}{self._address.path}: the answer is no result of a search "
                f"({type(error).__name__}: {error}); expected {self.answers}"
            ) from None

    def _find(self, words: str, num_hits: int) -> list[Hit]:
        asked = {"query": words, "type": "most_fields", "fields": ["text", "title"]}
        body = {"size": num_hits, "query": {"multi_match": asked}, "_source": ["text", "title", "source", "place"]}
        answer = _post(self._address, "/_search", json.dumps(body).encode(), "application/json")
        return [_hit(each["_id"], each["_source"], each["_score"]) for each in answer["hits"]["hits"]]


class Solr(OpenSearch):
    """A core or collection of Solr, asked by the DisMax parser, whose signs are none of the words."""

    answers = "response.docs with text and score"

    def _find(self, words: str, num_hits: int) -> list[Hit]:
        asked = {"q": words, "defType": "dismax", "qf": "text title", "tie": "1.0", "mm": "1"}
        fields = {**asked, "rows": num_hits, "fl": "id,text,title,source,place,score", "wt": "json"}
        body = urllib.parse.urlencode(fields).encode()
        answer = _post(self._address, "/select", body, "application/x-www-form-urlencoded")
        docs = enumerate(answer["response"]["docs"])
        return [_hit(each.get("id", number), each, each["score"]) for number, each in docs]


def _hit(number: Any, fields: dict[str, Any], score: Any) -> Hit:
    """Take a document of an engine; a field of several values, as Solr's own schema makes them, has them in turn."""

    def text_of(name: str) -> str:
        value = fields.get(name, "")
        return without_surrogates(" ".join(map(str, value)) if isinstance(value, list) else str(value))

    if "text" not in fields:
        raise KeyError("text")
    return Hit(str(number), text_of("text"), text_of("title"), text_of("source"), text_of("place"), float(score))


def _post(address: urllib.parse.SplitResult, path: str, body: bytes, kind: str) -> Any:
    """Post to an engine; give the JSON that it answers.

    Raises:
        InputError: it cannot be reached, refuses, or answers with something else.
    """
    headers = {"Content-Type": kind, "Accept": "application/json"}
    if address.username is not None:
        user = f"{urllib.parse.unquote(address.username)}:{urllib.parse.unquote(address.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(user.encode()).decode()
    host = address.netloc.rpartition("@")[2]
    url = urllib.parse.urlunsplit((address.scheme, host, address.path.rstrip("/") + path, address.query, ""))
    try:
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=SECONDS_TO_ANSWER) as answer:
            content = answer.read(WHOLE_MB * 1_000_000 + 1)
    except urllib.error.HTTPError as error:
        said = error.read(300).decode("utf-8", "replace")
        raise InputError(f"{url}: refused with {error.code} {error.reason}: {said}; is that the index?") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(f"{url}: no answer ({reason}); is the engine there?") from None
    if len(content) > WHOLE_MB * 1_000_000:
        raise InputError(f"{url}: an answer {TOO_LARGE}; ask for fewer passages")
    try:
        return parse_json(content.decode("utf-8"))
    except ValueError as error:
        raise InputError(f"{url}: the answer is no JSON ({error}); is that the engine?") from None


def _without_password(index: str) -> str:
    before, at, after = index.rpartition("@")
    return f"{before.partition('://')[0]}://...@{after}" if at else index
