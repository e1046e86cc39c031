"""The page of `bertkit serve` as people meet it: in a real browser, on a real server, by mouse and by keyboard."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import unicodedata
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import CONTROL, Browser, chromium
from conftest import headed_model
from server.serving import serving

from bertkit import load_embedder, load_predictor, load_tokenizer
from bertkit.data.corpus.tokenizer import Tokenizer
from bertkit.display.page import render, serve_policy
from bertkit.interop.hugging_face.directory import write_model

LABELS = {"sequence": ("bad", "good", "<b>ugly</b>"), "token": ("O", "B-X", "I-X", "B-Y", "I-Y")}
HEADS: dict[str, tuple[str, ...]] = {
    "stars": ("sequence",), "several": ("sequence",), "number": ("sequence",), "names": ("token",), "reader": ("span",),
    "endings": ("choice",), "tiny": ("masked_lm", "next_sentence"), "encoder": (),
    "writer": ("generation",),
}  # fmt: skip
SHORT = ("task.generation.max_target_length=11", "task.generation.num_beams=4", "task.generation.num_candidates=3")
HOSTILE = "<script>document.title='x'</script> \u202eevil <img src=x onerror=alert(1)> \U0001f600 e\u0301 kan'\"\\\n lon \u202c"
LONG = HOSTILE + "\U0001f600 kan" + " mir lon" * 1250


@pytest.fixture(scope="module")
def folders(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small models of every kind, by their names; their weights are large, so that their predictions differ."""
    results, root = {}, tmp_path_factory.mktemp("models")
    for name, heads in HEADS.items():
        changes: dict[str, Any] = {"labels": LABELS[heads[0]]} if heads and heads[0] in LABELS else {}
        if name == "several":
            changes |= {"problem_type": "multi_label_classification", "labels": ("1", "2", "10")}  # written as numbers
        if name == "number":
            changes |= {"labels": ("LABEL_0",), "problem_type": "regression"}
        changes |= {"seed": int(name == "reader"), "max_position_embeddings": 101}
        model = headed_model(tokenizer, *heads, scale=3, **changes)
        (root / name).mkdir()
        write_model(model, tokenizer, root / name)
        results[name] = root / name
    return results


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], python: Path) -> Iterator[str]:
    models = f"model_dir=[{','.join(map(str, folders.values()))}]"
    with serving(python, models, "max_view_tokens=61", *SHORT) as result:
        yield f"http://127.0.0.1:{result.port}/"
        assert result.stop() == 0


PASSAGE = "\U0001f600 e\u0301 Ada wrote the notes."
ORDERS = ["search", "vectors", "hybrid", "bert", "both"]
HITS = [
    {"passage": "word " * 900 + PASSAGE, "title": "<b>Notes</b>", "source": "https://example.org/a?b=<c>", "place": "line 7",
     "score_search": 12.5, "score_vectors": 0.25, "score_bert": 1.5, "score": 0.5, "answer": "Ada", "start": 4505, "end": 4508,
     "snippet": PASSAGE, "snippet_start": 4500, "marks": [[9, 14], [5, 8]]},
    {"passage": HOSTILE, "title": None, "source": "javascript:alert(1)", "place": None,
     "score_search": 5.0, "score_bert": -2.0, "score": 4.5e-5, "answer": "evil", "start": 37, "end": 41,
     "snippet": HOSTILE[30:], "snippet_start": 30, "marks": []},
]  # fmt: skip
FULL = {**HITS[0], "passage": "It rained. " * 18 + "Ada wrote the notes. Then she left.", "start": 198, "end": 201,
        "snippet": "It rained. " * 16 + "Ada wrote the notes.", "snippet_start": 22, "marks": []}  # fmt: skip


class Scripted(BaseHTTPRequestHandler):
    """A server that gives responses which a real one seldom gives."""

    def do_GET(self) -> None:
        model = {"name": "only", "kind": "spans", "columns": ["question", "context"], "needs_pair": True}
        model |= {"labels": [], "examples": []}
        self._send(
            200,
            render("serve.html", name="bertkit", served={"models": [model], "orders": ORDERS}),
            "text/html; charset=utf-8",
        )

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        word = asked.get("question")
        if word == "gone":
            self.close_connection = True
        elif word == "proxy":
            self._send(502, "<h1>Bad Gateway</h1>", "text/html")
        elif word == "busy":
            self._send(429, json.dumps({"error": {"code": "queue_full", "message": "256 requests wait already"}}))
        else:
            reply = {
                "answers": [FULL] * asked["top_k"] if word == "many" else HITS[: asked["top_k"]],
                "order": asked["order"],
                "has_odds": word != "odd",
                "is_cut": word == "cut",
                "seconds": 0.1,
            }
            self._send(200, json.dumps(reply))

    def _send(self, status: int, text: str, kind: str = "application/json") -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in (("Content-Type", kind), ("Content-Length", str(len(content)))):
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", serve_policy())
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def scripted() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as result:
        threading.Thread(target=result.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{result.server_port}/"
        result.shutdown()


@pytest.fixture(scope="module")
def one_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as result:
        yield result


@pytest.fixture
def browser(one_browser: Browser) -> Iterator[Browser]:
    """Also checks that the console has no errors and that no other server is contacted."""
    one_browser.faults.clear()
    one_browser.requests.clear()
    yield one_browser
    assert [url for url in one_browser.requests if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))] == []
    assert one_browser.faults == []


def use(browser: Browser, model: str, tool: str | None = None) -> None:
    browser.ask(
        f"(() => {{ const s = document.querySelector('#models'); s.value = [...s.options].find((o) => o.text === {model!r}).value;"
        " s.dispatchEvent(new Event('change')); })()"
    )
    if tool is not None:
        browser.click(f"#tools input[value={tool}] + span")


def write(browser: Browser, *texts: str) -> None:
    for number, text in enumerate(texts):
        browser.click(f"#field-{number}")
        browser.ask(f"document.querySelector('#field-{number}').select()")
        browser.type(text)


def answered(browser: Browser, button: str = "#go") -> str:
    """Click on a button, and give what is said when the answer is there."""
    browser.click(button)
    browser.wait("!document.querySelector('#found').hasAttribute('aria-busy')")
    status, failed = (f"document.querySelector('#{name}').textContent" for name in ("status", "failed"))
    return str(browser.ask(f"{status} + {failed}"))


def bars(browser: Browser) -> list[list[Any]]:
    """The rows of bars: a name, and a number."""
    rows = browser.ask(
        "[...document.querySelectorAll('#found .bars tr')].map((row) => [row.cells[0].textContent, row.cells[2].textContent])"
    )
    return [[name, float(number)] for name, number in rows]


def text_of(browser: Browser, selector: str) -> Any:
    return browser.ask(f"[...document.querySelectorAll({selector!r})].map((each) => each.textContent)")


def near(rows: list[list[Any]]) -> Any:
    return [[name, pytest.approx(value, abs=6e-4)] for name, value in rows]


def sorted_shares(probabilities: dict[str, float]) -> Any:
    return near(sorted(([*each] for each in probabilities.items()), key=lambda each: -each[1]))


def test_page_shows_labels_and_numbers(browser: Browser, server: str, folders: dict[str, Path]) -> None:
    browser.open(server)
    text = "kan lon mir rur"
    for name in ("stars", "several"):
        use(browser, name)
        write(browser, text)
        expected = load_predictor(folders[name], device="cpu")(text)
        output = list(map(str, np.ravel(expected["label"])))
        assert (", ".join(output) or "none of the labels") in answered(browser)
        assert bars(browser) == sorted_shares(expected["probabilities"])
        assert text_of(browser, "#found .best") == [row[0] for row in bars(browser) if row[0] in output]
    use(browser, "number")
    write(browser, text)
    answered(browser)
    expected = load_predictor(folders["number"], device="cpu")(text)["label"]
    assert float(text_of(browser, "#found .large")[0]) == pytest.approx(expected, abs=6e-4)
    use(browser, "several")
    write(browser, text, "ten sod")  # a second text is part of the input as soon as it is there
    answered(browser)
    expected = load_predictor(folders["several"], device="cpu")((text, "ten sod"))
    assert bars(browser) == sorted_shares(expected["probabilities"])


def test_entities_are_marked_where_they_are(browser: Browser, server: str, folders: dict[str, Path]) -> None:
    text = "\U0001f600 kan e\u0301 lon \U0001f468\u200d\U0001f469 mir. rur ten! sod kash losh? misht rud tem lor"
    expected = load_predictor(folders["names"], device="cpu")(text)["entities"]
    assert 1 < len(expected) < 20
    browser.open(server)
    use(browser, "names")
    write(browser, text)
    answered(browser)
    marks = browser.ask(
        "[...document.querySelectorAll('#found mark')].map((m) => [m.firstChild.textContent, m.querySelector('small').textContent])"
    )
    assert marks == [[each["text"], each["label"]] for each in expected]
    before = "const r = document.createRange(), b = document.querySelector('#found .running'); r.setStart(b, 0); r.setEndBefore(m);"
    starts = browser.ask(
        f"[...document.querySelectorAll('#found mark')].map((m) => {{ {before} const c = r.cloneContents();"
        " c.querySelectorAll('small').forEach((s) => s.remove()); return Array.from(c.textContent).length; })"
    )
    assert starts == [each["start"] for each in expected]
    assert bars(browser) == near([[f"{each['text']} · {each['label']}", each["score"]] for each in expected])


def test_page_shows_generated_text(browser: Browser, server: str, folders: dict[str, Path]) -> None:
    settings = {name: int(value) for name, value in (each.split("=") for each in SHORT)}
    predictor = load_predictor(folders["writer"], device="cpu", **settings)
    for text in (HOSTILE, "kan lon mir"):
        expected = predictor(text)
        browser.open(server)
        use(browser, "writer")
        write(browser, text)
        assert expected["text"] in answered(browser)
        assert text_of(browser, "#found .large") == [expected["text"]]
        assert text_of(browser, "#found .others bdi") == [each["text"] for each in expected["candidates"][1:]]
        score = float(text_of(browser, "#found .soft")[0].removeprefix("score "))
        assert score == pytest.approx(expected["score"], abs=6e-4)
        assert browser.ask("document.querySelectorAll('#found img, #found script').length") == 0
    assert answered(browser, "#look").endswith(" ms")
    browser.wait("document.querySelector('iframe') !== null")
    with inside(browser) as frame:
        frame.wait("document.documentElement?.dataset.aligned && document.documentElement.dataset.ready")
        across, down = (frame.ask(f"document.querySelectorAll('#a-{side} bdi').length") for side in ("across", "down"))
        assert across == len(load_tokenizer(folders["writer"])("kan lon mir")["input_ids"])
        size = frame.ask("[document.querySelector('#a-matrix').width, document.querySelector('#a-matrix').height]")
        assert size == [across, down]


def test_an_answer_is_marked_in_its_passage(browser: Browser, server: str, folders: dict[str, Path]) -> None:
    question, passage = "kan lon", "\U0001f600 " + "mir rur ten sod kan. " * 40
    expected = load_predictor(folders["reader"], device="cpu")((question, passage))
    assert expected["text"]
    browser.open(server)
    use(browser, "reader")
    write(browser, question, passage)
    answered(browser)
    assert text_of(browser, "#found mark") == text_of(browser, "#found .large") == [expected["text"]]
    assert text_of(browser, "#found .running") == [passage]
    start = browser.ask("Array.from(document.querySelector('#found mark').previousSibling?.textContent ?? '').length")
    assert start == expected["start"]
    rows = bars(browser)
    assert len(rows) == 6
    assert [expected["text"], pytest.approx(expected["probability"], abs=6e-4)] == rows[0]
    assert rows[5] == ["no answer", pytest.approx(expected["no_answer_probability"], abs=6e-4)]
    # another one of them is shown in its place
    browser.click("#found .bars tr:nth-child(3) button")
    assert text_of(browser, "#found mark") == [rows[2][0]]
    reply = json.loads(text_of(browser, "#reply")[0])["predictions"][0]
    start = browser.ask("Array.from(document.querySelector('#found mark').previousSibling?.textContent ?? '').length")
    assert start == reply["alternatives"][2]["start"]


def test_page_shows_choices_masks_and_pairs(browser: Browser, server: str, folders: dict[str, Path]) -> None:
    browser.open(server)
    use(browser, "endings")
    row = {"context": "kan lon", "endings": ["mir rur", "ten", "sod kan lon"]}
    write(browser, row["context"], "\n".join(row["endings"]))
    answered(browser)
    expected = load_predictor(folders["endings"], device="cpu")(row)
    shares = dict(zip(row["endings"], expected["probabilities"], strict=True))
    assert bars(browser) == sorted_shares(shares)
    use(browser, "tiny")
    write(browser, "kan [MASK] lon ")
    browser.click("#mask")  # puts one more where the cursor is
    answered(browser)
    expected = load_predictor(folders["tiny"], device="cpu")("kan [MASK] lon [MASK]")["masks"]
    assert bars(browser) == near([[each["token"], each["probability"]] for mask in expected for each in mask])
    filled = [mask[0]["token"] for mask in expected]
    assert text_of(browser, "#found .running") == [f"kan {filled[0]} lon {filled[1]}"]
    browser.click("#found .masks > div:nth-child(2) tr:nth-child(3) button")
    assert text_of(browser, "#found mark") == [filled[0], expected[1][2]["token"]]
    use(browser, "tiny/next_sentence")
    write(browser, "kan lon", "mir rur")
    assert "follow" in answered(browser)
    rows = bars(browser)
    assert sorted(name for name, _ in rows) == ["does not follow", "follows"]
    assert sum(value for _, value in rows) == pytest.approx(1, abs=2e-3)


def test_two_texts_are_compared(browser: Browser, server: str, folders: dict[str, Path]) -> None:
    browser.open(server)
    for name in ("encoder", "stars"):  # of any model
        use(browser, name, "similarity")
        write(browser, "kan lon", "mir rur kan")
        a, b = load_embedder(folders[name], device="cpu")(["kan lon", "mir rur kan"])
        answered(browser)
        cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        assert float(text_of(browser, "#found .large")[0]) == pytest.approx(cosine, abs=6e-4)


def test_page_works_with_keyboard_alone(browser: Browser, server: str) -> None:
    browser.open(server)
    seen = []
    focused = "(() => { const e = document.activeElement; return e.id || e.name || e.className || e.tagName; })()"

    def tab_to(name: str) -> None:
        for _ in range(40):
            if browser.ask(focused) == name:
                return
            browser.press("Tab")
            here = "document.activeElement"
            target = f"({here}.name === 'tool' ? {here}.nextSibling : {here})"
            assert browser.ask(f"getComputedStyle({target}).outlineStyle") != "none", browser.ask(focused)
            seen.append(browser.ask(focused))
        pytest.fail(f"{name} is not reached: {seen}")

    tab_to("models")
    for _ in HEADS:
        if browser.ask("document.querySelector('#models').selectedOptions[0].text") == "tiny":
            break
        browser.press("ArrowDown")
    tab_to("tool")
    tab_to("field-0")
    browser.type("kan [MASK] lon")
    browser.press("Enter", CONTROL)
    browser.wait("document.querySelectorAll('#found .bars tr').length === 5")
    tab_to("go")
    tab_to("plain")
    browser.press("Tab")
    browser.press(" ")  # the second word is filled in
    assert text_of(browser, "#found mark") == [bars(browser)[1][0]]
    tab_to("curl")
    tab_to("python")
    browser.ask("document.querySelector('#tools input:checked').focus()")
    browser.press("ArrowRight")
    assert browser.ask("document.querySelector('#tools input:checked').value") == "similarity"
    assert browser.ask("document.activeElement.value") == "similarity"
    # names for those who do not see it
    unnamed = browser.ask(
        "[...document.querySelectorAll('input, textarea, select, button, iframe')].filter((e) => e.checkVisibility() && "
        "!(e.labels?.length || e.textContent || e.ariaLabel || e.title)).map((e) => e.outerHTML)"
    )
    assert unnamed == []


def test_every_page_is_narrow_and_dark(browser: Browser, server: str) -> None:
    models = json.load(urllib.request.urlopen(f"{server}models"))["models"]
    assert len(models) == len(HEADS) + 1
    browser.open(server, 380, is_dark=True)
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    for model in models:
        use(browser, model["name"])
        if model["kind"] != "embedding":
            assert model["examples"]
            assert answered(browser, ".chip").endswith(" ms"), model  # an example is filled in, and asked
        assert browser.ask("document.documentElement.scrollWidth") <= 380, model
    assert browser.ask("[...document.querySelectorAll('img, link[href^=http], script[src]')].length") == 0


def test_hostile_text_is_text(browser: Browser, server: str, folders: dict[str, Path]) -> None:
    browser.open(server, 380)
    for name in ("stars", "names", "reader", "endings", "tiny"):
        for text in (HOSTILE, LONG):
            use(browser, name)
            write(browser, *([text, text] if name in ("reader", "endings") else [text]))
            assert answered(browser).endswith(" ms")
            assert browser.ask("document.title") == "bertkit"
            assert browser.ask("document.querySelectorAll('img, #found script, #found b, #found bdi > *').length") == 0
            assert browser.ask("document.documentElement.scrollWidth") <= 380
            if name == "names":
                shown = browser.ask(
                    "(() => { const c = document.querySelector('#found .running').cloneNode(true);"
                    " c.querySelectorAll('small').forEach((s) => s.remove()); return c.textContent; })()"
                )
                assert shown == text


def test_copied_commands_give_same_predictions(browser: Browser, server: str, python: Path, tmp_path: Path) -> None:
    browser.open(server)
    use(browser, "names")
    write(browser, HOSTILE)
    answered(browser)
    reply = json.loads(text_of(browser, "#reply")[0])
    assert reply["predictions"][0]["text"] == HOSTILE
    for selector, command in (("#curl", ["bash", "-c"]), ("#python", [str(python), "-c"])):
        (line,) = text_of(browser, selector)
        assert not any(unicodedata.category(each) in ("Cf", "Cc") for each in line.replace("\n", ""))
        if selector == "#curl" and shutil.which("curl") is None:
            continue
        done = subprocess.run([*command, line], capture_output=True, text=True, check=True, cwd=tmp_path)
        assert (json.loads if selector == "#curl" else eval)(done.stdout) == reply


def test_examples_send_the_token(
    browser: Browser, folders: dict[str, Path], python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTKIT_TOKEN", "s3cret-token")
    with serving(python, f"model_dir={folders['stars']}") as server:
        browser.call("Network.setExtraHTTPHeaders", headers={"Authorization": "Bearer s3cret-token"})
        browser.open(f"http://127.0.0.1:{server.port}/")
        write(browser, "kan lon")
        answered(browser)
        browser.call("Network.setExtraHTTPHeaders", headers={})
        reply = json.loads(text_of(browser, "#reply")[0])
        for selector, command in (("#curl", ["bash", "-c"]), ("#python", [str(python), "-c"])):
            (line,) = text_of(browser, selector)
            assert "s3cret" not in line
            if selector == "#curl":
                assert '-H "Authorization: Bearer $BERTKIT_TOKEN"' in line
            if shutil.which(command[0]):
                done = subprocess.run([*command, line], capture_output=True, text=True, check=True, cwd=tmp_path)
                assert (json.loads if selector == "#curl" else eval)(done.stdout) == reply


def test_docs_work_offline(browser: Browser, server: str) -> None:
    """Swagger UI, whose scripts and styles this server sends."""
    paths = json.load(urllib.request.urlopen(f"{server}openapi.json"))["paths"]
    browser.call("Page.navigate", url=f"{server}docs")
    browser.wait("document.querySelectorAll('.opblock').length")
    assert browser.ask("document.querySelectorAll('.opblock').length") == sum(map(len, paths.values()))
    browser.click("#operations-default-predict_predict_post button.opblock-summary-control")
    browser.wait("document.querySelector('.try-out__btn') !== null")
    browser.click(".try-out__btn")
    browser.wait("document.querySelector('.execute') !== null")
    browser.click(".execute")
    browser.wait("document.querySelector('.live-responses-table .response-col_status') !== null")
    assert "200" in text_of(browser, ".live-responses-table .response-col_status")[-1]
    assert '"predictions"' in text_of(browser, ".live-responses-table .microlight")[0]
    assert {url for url in browser.requests if not url.startswith((server, "data:", "blob:"))} == set()
    with urllib.request.urlopen(f"{server}docs") as reply:
        directives = dict(each.strip().split(" ", 1) for each in reply.headers["Content-Security-Policy"].split(";"))
    assert directives["default-src"] == "'none'"
    assert re.fullmatch(r"'self' 'sha256-\S+'", directives["script-src"])
    assert directives["connect-src"] == "'self'"


def test_page_opens_attention_of_same_input(browser: Browser, server: str) -> None:
    browser.open(server)
    use(browser, "stars")
    write(browser, "kan lon mir </script><img src=x>")
    assert answered(browser, "#look").endswith(" ms")
    assert browser.ask("document.querySelector('iframe').sandbox.value") == "allow-scripts"
    browser.wait("document.querySelector('iframe') !== null")
    with inside(browser) as frame:
        frame.wait("document.documentElement?.dataset.ready")
        assert frame.ask("document.querySelectorAll('#heads button').length") == 6
        assert "Attributions" in frame.ask("document.body.innerText")
        num_tokens = frame.ask("document.querySelectorAll('#to bdi').length")
        assert frame.ask("document.querySelector('#matrix').width") == num_tokens
        with pytest.raises(AssertionError, match="SecurityError"):  # it does not reach the page around it
            frame.ask("parent.document.title")
    browser.click("#attention button")
    assert browser.ask("document.querySelectorAll('iframe').length") == 0
    assert browser.ask("document.activeElement.id") == "look"


@contextlib.contextmanager
def inside(browser: Browser) -> Iterator[Browser]:
    """Speak with the frame of a page, which has a process of its own."""
    own, browser.session, results, started = browser.session, None, [], time.monotonic()
    try:
        while not results:
            assert time.monotonic() - started < 20, "there is no frame"
            results = [each for each in browser.call("Target.getTargets")["targetInfos"] if each["type"] == "iframe"]
        attached = browser.call("Target.attachToTarget", targetId=results[0]["targetId"], flatten=True)
        browser.session = attached["sessionId"]
        yield browser
    finally:
        browser.session = own


def test_page_shows_search_results(browser: Browser, scripted: str) -> None:
    browser.open(scripted, 380)
    browser.click("#field-0")
    browser.type("Who wrote it?")
    browser.press("Enter")
    browser.wait("document.querySelectorAll('.hits li').length === 2")
    assert "2 passages; the first answer: Ada" in text_of(browser, "#status")[0]
    assert text_of(browser, ".top-answer .large, .top-answer p") == ["Ada", PASSAGE]  # the snippet, as no sentence ends
    assert text_of(browser, ".top-answer mark") == ["Ada"]
    assert text_of(browser, ".hits .snippet") == [hit["snippet"] for hit in HITS]
    assert text_of(browser, ".hits .snippet mark") == ["Ada", "evil"]
    assert text_of(browser, ".hits .snippet b") == ["wrote"]  # a word of the question, outside of the answer
    assert text_of(browser, ".hits .unsure") == ["evil"] * 2  # no answer is likelier
    assert text_of(browser, ".hits .whole") == [hit["passage"] for hit in HITS]
    assert text_of(browser, ".hits h2") == ["<b>Notes</b>", "javascript:alert(1)"]
    links = browser.ask("[...document.querySelectorAll('.hits a')].map((a) => a.getAttribute('href'))")
    assert links == [HITS[0]["source"]]
    assert text_of(browser, ".hits .share b") == ["82 %", "12 %"]  # of the scores, those that are probabilities
    assert browser.ask("document.querySelectorAll('.hits .bar').length") == 2
    browser.click("#orders input[value=search] + span")  # another order is asked for at once
    browser.wait("document.querySelector('#reply').textContent.includes('\"order\": \"search\"')")
    assert '"order":"search"' in text_of(browser, "#curl")[0]
    browser.click(".hits summary")
    assert browser.ask("document.querySelector('.hits .whole').checkVisibility()")
    assert browser.ask("document.documentElement.scrollWidth") <= 380
    write(browser, "odd")  # a reader without unanswerable questions: no number of its own, and a note
    browser.press("Enter")
    browser.wait("document.querySelectorAll('.share').length === 0")
    assert text_of(browser, ".hits .unsure") == []
    assert "gives no probability of an answer" in text_of(browser, "#found > .soft")[0]
    write(browser, "cut")  # a question that is longer than the reader's input
    browser.press("Enter")
    browser.wait("document.querySelector('#found').textContent.includes('longer than a model reads')")


def test_ten_passages_fit_two_screens(browser: Browser, scripted: str) -> None:
    browser.open(scripted, 1280, 800)
    write(browser, "many")
    browser.press("Enter")
    browser.wait("document.querySelectorAll('.hits li').length === 10")
    assert browser.ask("document.querySelector('.hits').getBoundingClientRect().bottom + scrollY") <= 1600
    assert text_of(browser, ".top-answer .large, .top-answer p") == ["Ada", "Ada wrote the notes. "]  # in its sentence


@pytest.mark.slow
def test_every_page_is_accessible(browser: Browser, server: str, scripted: str, axe: str) -> None:
    models = json.load(urllib.request.urlopen(f"{server}models"))["models"]
    for width, is_dark in ((360, False), (1280, True)):
        browser.open(server, width, is_dark=is_dark)
        for model in models:
            use(browser, model["name"])
            if model["kind"] != "embedding":
                answered(browser, ".chip")
            assert browser.violations(axe) == [], (model, width)
        browser.open(scripted, width, is_dark=is_dark)
        write(browser, "Who wrote it?")
        answered(browser)
        assert browser.violations(axe) == [], width


def test_page_shows_errors(browser: Browser, scripted: str, server: str) -> None:
    browser.open(scripted)
    for word, message in (
        ("", "Question: type something first"),
        ("busy", "256 requests wait already. Try again in a moment."),
        ("proxy", "status 502"),
        ("gone", "the server has stopped, or cannot be reached"),
    ):
        if word:
            write(browser, word)
        assert message in answered(browser)
    assert browser.ask("document.querySelector('#failed').role") == "alert"
    browser.open(server)
    use(browser, "stars")
    write(browser, "kan " * 300)
    assert "expected at most 61" in answered(browser, "#look")
    failed_loads = [fault for fault in browser.faults if "Failed to load resource" in fault]
    assert browser.faults == failed_loads  # the browser's own lines about 429, 502, the lost connection and 413
    browser.faults.clear()


def test_alternatives_are_for_questions_alone(server: str, folders: dict[str, Path]) -> None:
    def ask(**body: Any) -> Any:
        content, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(f"{server}predict", content, headers)) as reply:
            return json.load(reply)["predictions"][0]

    pair = ["kan lon", "mir rur ten sod kan"]
    expected = load_predictor(folders["reader"], device="cpu")(tuple(pair))
    plain, more = (ask(inputs=[pair], model="reader", **inputs) for inputs in ({}, {"alternatives": 2}))
    shares = {name: pytest.approx(expected[name]) for name in expected if "prob" in name}
    assert plain == {**expected, "id": "0", **shares}
    assert {name: value for name, value in more.items() if name != "alternatives"} == plain
    assert all(pair[1][each["start"] : each["end"]] == each["text"] for each in more["alternatives"])
    for body, message in (
        ({"inputs": ["kan"], "model": "stars", "alternatives": 2}, "has no effect on a model of kind sequence"),
        ({"inputs": [pair], "model": "reader", "alternatives": 21}, "alternatives: 21; expected at most 20"),
        ({"inputs": [pair], "model": "reader", "alternatives": True}, "alternatives: true; expected a whole number"),
    ):
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            ask(**body)
        assert message in json.load(refused.value)["error"]["message"]


def test_the_page_is_small_and_is_sent_with_its_policy(server: str) -> None:
    with urllib.request.urlopen(server) as reply:
        content = reply.read()
        assert reply.headers["Content-Security-Policy"] == serve_policy()
        assert reply.headers["Content-Type"].startswith("text/html")
    assert len(content) < 60_000
    assert os.linesep.encode() in content
    assert not re.search(rb"https?://(?!\$)|@import|url\(", re.sub(rb"/\^https\?:[^/]*/", b"", content))
