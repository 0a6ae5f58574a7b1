"""Reports as people see them: in a browser, narrow and wide, on a white and on a dark page."""

import html
import json
import re
import shutil
import subprocess

import pytest

from t5x_lite.report import charts, page
from t5x_lite.report.page import Bold, Page, Quote, Section, Table

HOSTILE = "<script>injected = 1</script>"
BROWSER = next(filter(shutil.which, ("chromium", "chromium-browser", "google-chrome")), "")
WIDTHS = (390, 768, 1280)

# Shows the report at each width, waits until its charts are drawn, and writes what it finds.
PROBE = """<!doctype html><body><script>
const luminance = colour => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = (element, style) => {
  for (let e = element; e; e = e.parentElement) {
    const colour = style(e).backgroundColor;
    if (!/, 0\\)$|^transparent$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const contrast = (element, style) => {
  const own = style(element), text = element instanceof element.ownerDocument.defaultView.SVGElement
    ? own.fill : own.color;
  const [a, b] = [luminance(text), luminance(background(element, style))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
};
const measured = frame => {
  const doc = frame.contentDocument, style = e => frame.contentWindow.getComputedStyle(e);
  const texts = [...doc.querySelectorAll("main *")].filter(e =>
    !e.closest("script") && [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()));
  return {
    overflow: doc.documentElement.scrollWidth - doc.documentElement.clientWidth,
    contrast: Math.min(...texts.map(e => contrast(e, style))),
    texts: texts.length,
    drawn: doc.querySelectorAll(".vega-embed svg").length,
    unnamed: doc.querySelectorAll(".scroll:not([tabindex='0'][aria-label])").length,
    injected: typeof frame.contentWindow.injected,
    scheme: style(doc.body).backgroundColor,
  };
};
const frames = WIDTHS.map(width => {
  const frame = document.createElement("iframe");
  Object.assign(frame, {width, height: 900, src: "report.html"});
  document.body.append(frame);
  return frame;
});
const titled = (frame, title) => [...frame.contentDocument.querySelectorAll(".vega-embed svg text")]
  .filter(text => text.textContent == title).length;
let chosen = false;
const look = () => {
  const drawn = frame => frame.contentDocument?.querySelectorAll(".vega-embed svg").length;
  if (frames.some(frame => drawn(frame) != CHARTS)) return setTimeout(look, 50);
  if (!chosen && frames.every(frame => titled(frame, "raw tokens") == 1)) {
    for (const select of frames.map(frame => frame.contentDocument.querySelector("select"))) {
      select.value = "FLOPs";
      select.dispatchEvent(new Event("change"));
    }
    chosen = true;
  }
  if (frames.some(frame => titled(frame, "FLOPs") != 1)) return setTimeout(look, 50);
  document.body.textContent = JSON.stringify(frames.map(measured));
};
look();
</script></body>"""


AXES = {"raw tokens": {HOSTILE: 1024, "b": 1024}, "FLOPs": {HOSTILE: 3e9, "b": 2e9}}


def full_page() -> Page:
    """One of everything."""
    curve = [[step, 9 - step / 100] for step in range(0, 500, 10)]
    heading = ["model", *(f"span bits per byte, number {number}" for number in range(12))]
    row = [HOSTILE, Bold("1.234 ± 0.056"), *["2.345 ± 0.067"] * 11]
    intervals = {
        "a": {"mean": 2.0, "low": 1.8, "high": 2.2},
        HOSTILE: {"mean": 2.5, "low": None, "high": None},
    }
    drawn = [
        *charts.intervals(intervals, {"trigram": 2.4}, "bits", "Lower is better."),
        *charts.curves({HOSTILE: curve, "b": curve}, {"b": curve[::10]}, y="loss", axes=AXES),
    ]
    sections = [
        Section("Table", [Table(heading, [row, row], "Mean ± half of the interval"), "A note."]),
        Section("Charts", drawn),
        Section("Samples", [Quote(f"gpt: {HOSTILE}", f"{HOSTILE}\n" + "x" * 300)]),
    ]
    return Page(f"Title {HOSTILE}", "The answer. " * 20, sections)


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(tmp_path, scheme):
    """Nothing is wider than the page, everything can be read, all charts are drawn, and what is
    named <script> is shown.
    """
    report = full_page()
    page.write(report, tmp_path)
    probe = PROBE.replace("WIDTHS", str(list(WIDTHS))).replace("CHARTS", "2")
    (tmp_path / "probe.html").write_text(probe)
    ran = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--allow-file-access-from-files",
            f"--user-data-dir={tmp_path / 'browser'}",
            f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
            "--dump-dom",
            (tmp_path / "probe.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in ran.stderr, ran.stderr
    found = json.loads(html.unescape(re.search(r"<body>(.*?)</body>", ran.stdout, re.S)[1]))
    for width, measured in zip(WIDTHS, found, strict=True):
        assert measured["overflow"] <= 0, (width, measured)
        assert measured["contrast"] >= 4.5, (width, measured)
        assert measured["drawn"] == 2
        assert measured["texts"] > 50
        assert measured["unnamed"] == 0
        assert measured["injected"] == "undefined"
        is_dark = measured["scheme"] != "rgb(255, 255, 255)"
        assert is_dark == (scheme == "dark")


def test_without_javascript_the_pictures_are_there():
    text = page.html(full_page())
    body = text[: text.index('<script type="module">')]
    assert body.count("<svg") == 2
    assert HOSTILE not in text


def test_what_is_marked_is_marked_among_numbers_and_among_words():
    rows = [["lm", Bold("-0.637 (-0.79 to -0.36)"), Bold("different")], ["gpt", "+0.005", "open"]]
    table = Table(["effect", "exact match", "verdict"], rows)
    assert table.is_of_words == [True, False, True]
    written = page.html(Page("A title", "", [Section("Effects", [table])]))
    for text in ("-0.637 (-0.79 to -0.36)", "different"):
        assert f'<strong class="best">{text}</strong>' in written


def test_a_text_is_a_text_whatever_it_holds():
    """A line end would end the row of a table; a number at its beginning does not make it one."""
    rows = [["9", "42 |\r\n<b>\x1b[2J"], ["10", "7 cats"]]
    table = Table(["step", "text"], rows, texts=(1,))
    written = Page("A", "", [Section("B", [table])])
    text = page.markdown(written)
    assert "| ---: | --- |" in text
    assert r"| 9 | 42 \| &lt;b>\x1b[2J |" in text.splitlines()
    assert '<td class="words">7 cats</td>' in page.html(written)
