"""The page, its answers and its server: what each kind of model can do, who may ask, and what a
person sees in a real browser.
"""

import json
import threading
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import pytest
from browser import BROWSER, Browser
from conftest import ALL_CELLS, refusal, run
from inference.untrained import untrained

from t5x_lite.api import LanguageModel
from t5x_lite.errors import USAGE, UserError
from t5x_lite.pages.play import ACTIONS, actions_of, answer, play_server

HOSTILE = "<script>injected = 1</script>"
# One of each kind of row and architecture: what a model can do depends on nothing else.
KINDS = {
    (objective.partition("(")[0], architecture): (objective, architecture)
    for objective, architecture in ALL_CELLS
}


@pytest.fixture
def model(make):
    """A function that makes a model of an objective on an architecture."""

    def make_model(objective, architecture) -> LanguageModel:
        return LanguageModel(
            untrained(make, objective, architecture, **{"model.positions": "relative"})
        )

    return make_model


@pytest.mark.parametrize("kind", KINDS.values(), ids="-".join)
def test_a_model_does_what_the_page_offers_and_nothing_else(model, kind):
    one = model(*kind)
    offered = actions_of(one)
    assert offered
    for action in ACTIONS:
        request = {"action": action, "text": "the ___ cat", "max_new_tokens": 4}
        if action in offered:
            assert list(answer(one, request))
        else:
            expected = f"action: got {action!r}; "
            assert refusal(list, answer(one, request), code=USAGE).startswith(expected)


def test_what_is_written_is_what_is_predicted(model):
    one = model("span_corruption", "encoder_decoder")
    request = {"action": "continue", "text": "the cat", "max_new_tokens": 12, "temperature": 1.0}
    *pieces, last = answer(one, request)
    written = "".join(piece["piece"] for piece in pieces)
    assert written == one.generate("the cat", max_new_tokens=12, temperature=1.0)
    assert "".join(token["text"] for token in last["tokens"]) == written
    with pytest.raises(UserError, match="temperature: got -1"):
        list(answer(one, request | {"temperature": -1}))
    with pytest.raises(UserError, match="text: got None"):
        list(answer(one, request | {"text": None}))
    # A lone surrogate, which JSON may hold, and nothing at all
    for text in ("a\ud800", ""):
        assert "tokens" in list(answer(one, request | {"text": text}))[-1]


@contextmanager
def serving(models):
    with play_server(models) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()


def ask(server, method, path, body=b"", **headers) -> tuple[int, bytes]:
    with closing(HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.request(method, path, body, headers)
        answered = connection.getresponse()
        return answered.status, answered.read()


def test_only_the_page_itself_may_ask(model):
    with serving({"gpt": model("causal_lm", "decoder")}) as server:
        own = f"http://127.0.0.1:{server.server_port}"
        kind = {"Content-Type": "application/json"}
        request = json.dumps({"model": "gpt", "action": "score", "text": "the cat"}).encode()
        assert ask(server, "GET", "/")[0] == 200
        assert ask(server, "POST", "/ask", request, **kind, Origin=own)[0] == 200
        # Another site, also under a name of its own that leads here, and its forms
        for others in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert ask(server, "GET", "/models", **others)[0] == 403
            assert ask(server, "POST", "/ask", request, **kind, **others)[0] == 403
        assert ask(server, "POST", "/ask", request, **{"Content-Type": "text/plain"})[0] == 415
        # What is no request
        assert ask(server, "GET", "/../server.py")[0] == 404
        assert ask(server, "POST", "/models", request, **kind)[0] == 404
        for bad in (b"{", b"[" * 100_000, b"[]", b"1"):
            assert ask(server, "POST", "/ask", bad, **kind)[0] == 400
        for length in ("2000000", "9" * 5000, "-1", "x"):
            assert ask(server, "POST", "/ask", **kind, **{"Content-Length": length})[0] == 413
        for bad in (
            {},
            {"model": "none"},
            {"model": ["gpt"]},
            {"model": "gpt", "action": "fill", "text": "___"},
        ):
            status, answered = ask(server, "POST", "/ask", json.dumps(bad).encode(), **kind)
            assert (status, list(json.loads(answered))) == (200, ["error"])


def test_bad_commands_are_one_sentence(tmp_path):
    _, err = run("play", f"--workdir={tmp_path}/none", code=66)
    assert "no such directory" in err
    (tmp_path / "config.json").write_text("{}")
    _, err = run("play", f"--workdir={tmp_path}", f"--beside={tmp_path}", code=2)
    assert "is given twice" in err
    with play_server({}) as taken:
        _, err = run("play", f"--workdir={tmp_path}", f"--port={taken.server_port}", code=2)
    assert "in use; name another, or 0 for any that is free" in err


CONTRAST = """(() => {
  const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = colour.map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  // The colours behind a text, from the page's to its own, each over the one before
  const behind = element => {
    if (!element) return [255, 255, 255];
    const [r, g, b, a = 1] = rgb(getComputedStyle(element).backgroundColor);
    const under = behind(element.parentElement);
    return [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
  };
  const shown = [...document.querySelectorAll("main *")].filter(e => e.checkVisibility()
    && [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()));
  return Math.min(...shown.map(e => {
    const both = [luminance(rgb(getComputedStyle(e).color)), luminance(behind(e))];
    return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
  }));
})()"""


@pytest.mark.skipif(not BROWSER, reason="needs Chromium")
def test_in_a_browser(model, tmp_path):
    models = {
        HOSTILE: model("causal_lm", "decoder"),
        "bert": model("masked_lm", "encoder"),
        "t5": model("span_corruption", "encoder_decoder"),
    }
    with serving(models) as server, Browser(str(tmp_path)) as browser:
        browser.open(server.address)
        browser.wait("document.querySelectorAll('article').length == 3")
        press = "[...document.querySelectorAll('button')].find(b => b.textContent == '{}').click()"
        text = f"the cat {HOSTILE}"
        browser.run(f"document.querySelector('textarea').value = {json.dumps(text)}")
        browser.run("document.getElementById('max_new_tokens').value = 8")
        browser.run(press.format("Continue"))
        browser.wait("document.body.dataset.done == 'continue'")
        read = "[...document.querySelectorAll('article')].map(a => a.querySelector('{}').{})"
        outputs = browser.run(read.format(".output", "textContent"))
        expected = [
            text + model.generate(text, max_new_tokens=8)
            for name, model in models.items()
            if name != "bert"
        ]
        assert [outputs[0], outputs[2]] == expected
        assert "cannot continue" in browser.run(read.format(".note", "textContent"))[1]
        # A token that is chosen says what else was likely.
        browser.run("document.querySelectorAll('.token')[1].click()")
        words = "[...document.querySelectorAll('article tbody th')].slice(0, 8)"
        shown = browser.run(f"{words}.map(word => word.textContent)")
        *_, tokens = models[HOSTILE].stream_tokens(text, top=8, max_new_tokens=8)
        assert shown == [word for word, _ in tokens[1].likeliest]
        assert browser.run("typeof injected") == "undefined"

        # The address asks the same again, on a narrow and a wide page, light and dark.
        address = browser.run("location.href")
        for width, dark in ((390, False), (390, True), (1280, False), (1280, True)):
            browser.open(address, width, dark=dark)
            browser.wait("document.body.dataset.done == 'continue'")
            assert browser.run(read.format(".output", "textContent"))[0] == expected[0]
            page = "document.documentElement"
            assert browser.run(f"{page}.scrollWidth - {page}.clientWidth") <= 0
            assert browser.run(CONTRAST) >= 4.5
        browser.run("document.querySelector('textarea').value = 'the ___ sees a ___'")
        browser.run(press.format("Fill in"))
        browser.wait("document.body.dataset.done == 'fill'")
        tables = browser.run(
            "[...document.querySelectorAll('article')].map(a => a.querySelectorAll('table').length)"
        )
        assert tables == [0, 2, 0]
        filled = browser.run("document.querySelectorAll('article')[2].innerText")
        assert "Blank 2:" in filled
        server.shutdown()
        server.server_close()
        browser.run(press.format("Score"))
        browser.wait("document.body.dataset.done == 'score'")
        assert "does not answer" in browser.run(read.format(".note", "textContent"))[0]
