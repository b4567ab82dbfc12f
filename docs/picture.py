"""Draw docs/tagged.png, README's picture of a tagged answer, and write what it shows into README.

    python docs/picture.py           # the adapter that comes with lovec, minutes
    python docs/picture.py runs/demo/distil

The model answers questions about the test cities of Atlas. Of the answers that have both true and wrong sentences, and
none that is partly true, the one is shown whose confidences separate the two best; README says so. Needs Chromium and
Pillow.
"""

from __future__ import annotations

import argparse
import html
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lovec.core.files import write_text
from lovec.datamodules import Atlas
from lovec.display import passage_html, style
from lovec.taggers import open_session
from lovec.tagging import TextTagger
from lovec.types import FREE_FORM, LovecError, Record, Sentence

HERE = Path(__file__).resolve().parent
PICTURE = HERE / "tagged.png"
README = HERE.parent / "README.md"
BEGIN = "<!-- picture: written by docs/picture.py -->"
END = "<!-- end of the picture -->"
SHORTEST = 3  # sentences of an answer that is shown
WIDTH, TALLEST, SCALE = 760, 1200, 2
LARGEST = 150_000  # bytes

PAGE = """<!doctype html><meta charset="utf-8"><style>{style}
html, body {{ margin: 0; background: #fff; }}
.lovec {{ box-sizing: border-box; width: {width}px; padding: 14px 20px 10px; font: 16px/1.5 system-ui, sans-serif; }}
.ask {{ margin: 0 0 10px; padding: 7px 12px; border-radius: 8px; background: #f1f1f1; }}
table {{ border-collapse: collapse; width: 100%; }}
th {{ text-align: left; font-weight: 600; font-size: 13px; color: #595959; padding: 2px 0 4px; }}
td {{ padding: 5px 0; border-top: 1px solid #ddd; vertical-align: top; }}
td:last-child, th:last-child {{ width: 148px; text-align: right; }}
td, td * {{ margin-block: 0 !important; }}
.lv-detail, .lv-sr {{ display: none; }}
</style><body><div class="lovec"><p class="ask">{question}</p><table>
<tr><th>What the model writes, and how sure it is of each sentence</th><th>In truth</th></tr>
{rows}</table></div>"""


def main(words: Sequence[str] | None = None) -> None:
    """Draw the picture and write README."""
    parser = argparse.ArgumentParser(description="Draw docs/tagged.png and write README's caption.")
    parser.add_argument("adapter", nargs="?", default="atlas", help="a run such as runs/demo/distil; default: atlas")
    parser.add_argument("--browser", default="chromium", help="name or path of Chromium")
    options = parser.parse_args(words)
    answers = answers_of(options.adapter)
    chosen, mixed = clearest(answers)
    draw(document(chosen), PICTURE, options.browser)
    update(README, caption(chosen, mixed, len(answers)))
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes")


def answers_of(adapter: str) -> list[Record]:
    """Return answers about the test cities, with the confidences that users get and the labels of the oracle."""
    data = Atlas(test_sets=["test"])
    asked = [Record(record.id, record.question, meta=record.meta) for record in data.questions("test")]
    with open_session(adapter=adapter) as session:
        tagger = TextTagger(session)
        answers = tagger.answer_questions(asked)
        print(tagger.note(FREE_FORM), file=sys.stderr)
    rated = data.oracle.rate(answers)
    return [answer.with_factuality(row) for answer, row in zip(answers, rated, strict=True)]


def clearest(answers: Sequence[Record]) -> tuple[Record, int]:
    """Return the answer whose confidences separate true from wrong sentences best, and how many answers mix the two.

    Raises:
        LovecError: no answer mixes them, with a confidence and a label for every sentence.
    """
    gaps = []
    for answer in answers:
        pairs = [(s.confidence, s.factuality) for s in answer.sentences]
        if len(pairs) < SHORTEST or any(c is None or f not in (0.0, 1.0) for c, f in pairs):
            continue
        true = [c for c, f in pairs if f]
        wrong = [c for c, f in pairs if not f]
        if true and wrong:
            gaps.append((min(true) - max(wrong), answer))
    if not gaps:
        raise LovecError("no answer mixes true and wrong sentences; give another adapter")
    return max(gaps, key=lambda gap: gap[0])[1], len(gaps)


def document(answer: Record) -> str:
    """Return the page that is photographed: a row per sentence, marked as on the page of ``lovec tag``."""
    rows = []
    for sentence in answer.sentences:
        shown = passage_html(replace(answer, sentences=(sentence,), answer=sentence.text))
        rows.append(f"<tr><td>{shown}</td><td>{truth(sentence)}</td></tr>\n")
    return PAGE.format(style=style(), width=WIDTH, question=html.escape(answer.question), rows="".join(rows))


def truth(sentence: Sentence) -> str:
    """Return in a word whether a sentence is true."""
    return "✓ true" if sentence.factuality else "✗ wrong"


def caption(answer: Record, mixed: int, number: int) -> str:
    """Return README's picture, with its content in words for those who cannot see it."""
    said = " ".join(f"{s.text} ({100 * (s.confidence or 0.0):.0f} %, {truth(s)[2:]})" for s in answer.sentences)
    alt = f"{answer.question} {said}".replace("[", "(").replace("]", ")")
    return (
        f"![{alt}](docs/tagged.png)\n\n"
        "*SmolLM2 (135 million parameters) with the adapter that comes with lovec, on a city that training left out. "
        f"Of {number} such answers, {mixed} have both true and wrong sentences and no half-true one; shown "
        "is the one whose confidences separate true from wrong best, [the tables](#results) show the average.*"
    )


def draw(page: str, path: Path, browser: str = "chromium") -> None:
    """Photograph a page, cut off what is empty below it, and write it as a small PNG.

    Raises:
        LovecError: there is no browser, or the picture is too large.
    """
    from PIL import Image, ImageChops

    if shutil.which(browser) is None:
        raise LovecError(f"there is no {browser} on the PATH; install Chromium, or name one with --browser")
    with tempfile.TemporaryDirectory() as folder:
        source, photograph = Path(folder, "page.html"), Path(folder, "page.png")
        source.write_text(page, encoding="utf-8")
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb"]
        flags += [f"--force-device-scale-factor={SCALE}", f"--window-size={WIDTH},{TALLEST}"]
        flags += [f"--user-data-dir={folder}/profile", f"--screenshot={photograph}", source.as_uri()]
        subprocess.run([browser, *flags], check=True, capture_output=True, timeout=120)
        image = Image.open(photograph).convert("RGB")
    box = ImageChops.difference(image, Image.new("RGB", image.size, "white")).getbbox()
    bottom = min(image.height, (box[3] if box else image.height) + 8 * SCALE)
    small = image.crop((0, 0, image.width, bottom)).quantize(64)
    small.save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise LovecError(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}")


def update(readme: Path, text: str) -> None:
    """Write a text between the marks of README."""
    before, _, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(readme, f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    try:
        main()
    except LovecError as error:
        sys.exit(f"error: {error}")
