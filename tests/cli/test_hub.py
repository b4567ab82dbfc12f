"""Models and data of a hub, with its real client and a local server of its API: uploaded, and read by their names."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from hubserver import OWNER, READER, Handler, Hub, hub_server
from hubshell import HubShell
from tinyrun import tiny

from lovec.calibration import weights_digest
from lovec.cli import main
from lovec.core.hub import HubName
from lovec.core.provenance import digest
from lovec.datasets.hub_rows import HubRows
from lovec.policy import Policy, PolicyConfig

TEXT = "Ada wrote the first note. It rained in London."


@dataclass
class Site:
    """A hub, a process that uses it, and what tests write."""

    hub: Hub
    shell: HubShell
    home: Path
    adapter: Path

    def run(self, *words: str, token: str | None = None, **environment: str) -> tuple[int, str, str]:
        """Run a command; return its exit code and what it printed on both streams."""
        named = {} if token is None else {"HF_TOKEN": token}
        return self.shell.run(words, self.home, **named, **environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A hub, and a folder with an adapter that has a calibration."""
    home = tmp_path_factory.mktemp("hub")
    model = tiny(home, "llama")
    torch.manual_seed(0)
    policy = Policy(PolicyConfig(model, lora_r=4))
    with torch.no_grad():
        for parameter in policy.trainable():
            parameter.normal_(std=0.1)
    policy.save_adapter(home / "adapter")
    (home / "adapter" / "lovec.json").write_text(json.dumps({"instruction": "Rate it.", "tag_words": ["<c>", "</c>"]}))
    (home / "page.txt").write_text(TEXT)
    rows = [
        {
            "question": "Who?",
            "answer": TEXT,
            "sentences": [{"text": s.strip() + ".", "factuality": 0.5 + 0.5 * (i % 2)} for s in TEXT.split(".")[:2]],
            "id": f"r{i}",
        }
        for i in range(40)
    ]
    (home / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["calibrate", str(home / "adapter"), "--data", str(home / "dev.jsonl")]
    assert main(words) == 0
    with hub_server() as hub:
        shell = HubShell(hub.address, home / "cache")
        try:
            yield Site(hub, shell, home, home / "adapter")
        finally:
            shell.end()


@pytest.fixture(scope="module")
def pushed(site: Site) -> Site:
    """The hub with the adapter as ``acme/note`` and the merged model as ``acme/whole``."""
    for name, more in (("note", []), ("whole", ["--merged"])):
        words = ["export", str(site.adapter), f"out/{name}", "--push", f"acme/{name}", *more]
        code, out, err = site.run(*words, token=OWNER)
        assert code == 0 and f"uploaded to {site.hub.address}/acme/{name} (private)" in out, err
    return site


@contextmanager
def faulty(site: Site, fault: Callable[[Handler], bool]) -> Iterator[None]:
    site.hub.fault = fault
    try:
        yield
    finally:
        site.hub.fault = None


def tagged(site: Site, *words: str, token: str | None = OWNER, **environment: str) -> list[dict]:
    code, out, err = site.run(
        "tag", "page.txt", "--about", "Ada", "--format", "jsonl", *words, token=token, **environment
    )
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def parquet(rows: list[dict]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


# Names


@pytest.mark.parametrize(
    "text, repo, revision",
    [("acme/note", "acme/note", None), ("acme/note@v1.0", "acme/note", "v1.0"), ("a/b@refs/pr/1", "a/b", "refs/pr/1")],
)
def test_names_of_the_hub(text: str, repo: str, revision: str | None) -> None:
    assert HubName.parse(text) == HubName(repo, revision) and str(HubName.parse(text)) == text


@pytest.mark.parametrize("text", ["note", "a/b/c", "/a/b", "./a", "../a", "a/", "runs/dpo", "a/b@", "a b/c", "here/x"])
def test_paths_are_no_names(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    assert HubName.parse(text) is None and HubRows.parse(text) is None


def test_names_of_data_sets() -> None:
    assert HubRows.parse("a/b@v1:de/test") == HubRows(HubName("a/b", "v1"), "de", "test")
    assert HubRows.parse("a/b:test") == HubRows(HubName("a/b"), None, "test")
    for path in ("a/b.jsonl", "a/b.csv.gz", "a/b.txt", "a/b:", "a/b:x/y/z"):
        assert HubRows.parse(path) is None


# Uploads


def test_an_upload_holds_the_files_of_the_export(pushed: Site) -> None:
    repo = pushed.hub.repos["models", "acme/note"]
    files = repo.commits[repo.branches["main"]]
    names = {"README.md", "adapter_config.json", "adapter_model.safetensors", "calibration.json", "lovec.json"}
    assert repo.private and set(files) == names | {".gitattributes"} and len(repo.commits) == 2
    assert all(files[name] == (pushed.home / "out/note" / name).read_bytes() for name in names)
    assert weights_digest(pushed.home / "out/note") in pushed.hub.stored  # large files go through LFS
    merged = pushed.hub.repos["models", "acme/whole"]
    assert {"model.safetensors", "config.json", "tokenizer.json", "calibration.json"} <= set(
        merged.commits[merged.branches["main"]]
    )


def test_a_branch_and_a_public_repository(pushed: Site) -> None:
    words = ["export", str(pushed.adapter), "out/open", "--redo", "--push"]
    code, out, err = pushed.run(*words, "acme/open@v2", "--public", token=OWNER)
    repo = pushed.hub.repos["models", "acme/open"]
    assert code == 0 and "(private)" not in out and not repo.private, err
    assert "lovec.json" in repo.commits[repo.branches["v2"]] and "lovec.json" not in repo.commits[repo.branches["main"]]
    commits = len(repo.commits)
    code, _, err = pushed.run(*words, "acme/open", token=OWNER)
    assert code == 1 and "is there and public; give --public" in err and len(repo.commits) == commits


@pytest.mark.parametrize(
    "token, message",
    [
        (None, "there is no token for the hub; log in with `hf auth login`, or set HF_TOKEN"),
        (READER, "your token may not do that with acme/other (403); make one with write access to acme"),
        ("hf_wrong", "the hub refuses your token for acme/other (401)"),
    ],
)
def test_tokens_that_may_not_write(token: str | None, message: str, pushed: Site) -> None:
    words = ["export", str(pushed.adapter), "out/other", "--redo", "--push", "acme/other"]
    code, _, err = pushed.run(*words, **({} if token is None else {"token": token}))
    assert code == 1 and message in err and "Traceback" not in err and "hf_" not in err
    assert ("models", "acme/other") not in pushed.hub.repos


@pytest.mark.parametrize("lost", ["README.md", "lovec.json", "adapter_model.safetensors", "calibration.json"])
def test_a_folder_that_is_not_complete_is_refused_before_any_request(lost: str, pushed: Site, tmp_path: Path) -> None:
    from lovec.export.uploading import upload
    from lovec.types import LovecError

    for file in (pushed.home / "out/note").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes() if file.name != lost else b"")
    asked = len(pushed.hub.asked)
    with pytest.raises(LovecError, match=lost.replace(".", r"\.")):
        upload(tmp_path, HubName("acme/lost"))
    assert len(pushed.hub.asked) == asked


def test_a_card_that_the_hub_refuses_makes_no_repository(pushed: Site, tmp_path: Path) -> None:
    assert "base_model:" not in (pushed.home / "out/note" / "README.md").read_text()  # it is a folder here
    words = ["export", str(pushed.adapter), "out/card", "--push", "acme/card"]

    def refused(request: Handler) -> bool:
        if request.route == "/api/validate-yaml":
            request.send(400, b'{"errors":[{"message":"no card"}]}')
        return request.route == "/api/validate-yaml"

    with faulty(pushed, refused):
        code, _, err = pushed.run(*words, token=OWNER)
    assert code == 1 and "the hub refuses the model card" in err and "no card" in err and "Traceback" not in err, err
    assert ("models", "acme/card") not in pushed.hub.repos


# Adapters and models


def test_an_adapter_is_read_by_its_name(pushed: Site) -> None:
    here = tagged(pushed, "--adapter", "adapter", token=None)
    assert tagged(pushed, "--adapter", "acme/note") == here
    assert tagged(pushed, "--adapter", "acme/note", token=None, HF_HUB_CACHE="x") == here  # in the cache
    assert tagged(pushed, "--adapter", "acme/note", "--raw") != here  # so it is calibrated
    commit = pushed.hub.repos["models", "acme/note"].branches["main"]
    assert tagged(pushed, "--adapter", f"acme/note@{commit}") == here


def test_the_chat_template_of_an_adapter_is_uploaded_and_fetched(pushed: Site) -> None:
    adapter = pushed.home / "templated"
    shutil.copytree(pushed.adapter, adapter)
    (adapter / "calibration.json").unlink()
    base = Path(json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"])
    text = (base / "chat_template.jinja").read_text().replace("| trim", "| trim | upper")
    assert text != (base / "chat_template.jinja").read_text()
    (adapter / "chat_template.jinja").write_text(text)
    settings = json.loads((adapter / "lovec.json").read_text())
    (adapter / "lovec.json").write_text(json.dumps({**settings, "chat_template": digest(text)}))
    words = ["export", str(adapter), "out/templated", "--push", "acme/templated"]
    code, _, err = pushed.run(*words, token=OWNER)
    assert code == 0, err
    here = tagged(pushed, "--adapter", "acme/note", "--raw", "--chat_template", str(adapter / "chat_template.jinja"))
    there = tagged(pushed, "--adapter", "acme/templated", "--raw")
    assert [row["sentences"] for row in there] == [row["sentences"] for row in here]
    assert tagged(pushed, "--adapter", "acme/note", "--raw")[0]["sentences"] != there[0]["sentences"]


def test_a_merged_model_is_read_by_its_name_with_its_prompt_and_map(pushed: Site) -> None:
    assert tagged(pushed, "--model", "acme/whole") == tagged(pushed, "--model", "out/whole")
    assert tagged(pushed, "--model", "acme/whole", "--raw") != tagged(pushed, "--model", "acme/whole")


def test_nothing_but_what_is_read_is_fetched(pushed: Site) -> None:
    files = dict(
        pushed.hub.repos["models", "acme/note"].commits[pushed.hub.repos["models", "acme/note"].branches["main"]]
    )
    pushed.hub.add("models", "evil/note", {**files, "adapter_model.bin": pickle.dumps(print), "x.py": b"1/0"})
    tagged(pushed, "--adapter", "evil/note")
    assert not [line for line in pushed.hub.asked if "evil/note" in line and (".bin" in line or ".py" in line)]
    del files["adapter_model.safetensors"]
    pushed.hub.add("models", "evil/bin", {**files, "adapter_model.bin": pickle.dumps(print)})
    code, _, err = pushed.run("tag", "page.txt", "--adapter", "evil/bin")
    assert code == 1 and "evil/bin on the hub has no adapter_model.safetensors" in err


@pytest.mark.parametrize(
    "name, message",
    [
        ("acme/nothing", "there is no adapter acme/nothing on the hub and no such file or folder here"),
        ("acme/note@v9", "acme/note has no revision v9; name a branch, tag or commit"),
    ],
)
def test_what_is_not_there_is_named(name: str, message: str, pushed: Site) -> None:
    code, _, err = pushed.run("tag", "page.txt", "--adapter", name, token=OWNER)
    assert code == 1 and message in err and "Traceback" not in err


def test_a_download_that_breaks_off_is_one_line(pushed: Site) -> None:
    files = dict(next(reversed(pushed.hub.repos["models", "acme/note"].commits.values())))
    pushed.hub.add("models", "acme/broken", files)

    def cut(request: Handler) -> bool:
        if request.command != "GET" or not request.route.endswith("adapter_config.json"):
            return False
        request.send(200, b"{", Content_Length="900")
        request.close_connection = True
        return True

    with faulty(pushed, cut):
        code, _, err = pushed.run("tag", "page.txt", "--adapter", "acme/broken", token=OWNER)
    assert code == 1 and "Traceback" not in err, err
    assert "lovec: error: the hub broke off" in err and "acme/broken" in err and "try again" in err


@pytest.mark.parametrize(
    "reply", [None, [], 7, {"id": "acme/odd"}, {"siblings": 3, "sha": 40 * "a"}, {"siblings": [1]}]
)
@pytest.mark.parametrize(
    "words",
    [
        ["tag", "page.txt", "--adapter", "acme/odd"],
        ["tag", "page.txt", "--model", "acme/odd@v1"],
        ["tag", "acme/odd", "--adapter", "adapter"],
        ["export", "adapter", "out/odd", "--redo", "--push", "acme/odd"],
    ],
)
def test_a_reply_that_no_hub_gives_is_one_line(words: list[str], reply: Any, pushed: Site) -> None:
    def odd(request: Handler) -> bool:
        if "/api/" in request.route:
            request.reply(reply)
        return "/api/" in request.route

    with faulty(pushed, odd):
        code, _, err = pushed.run(*words, token=OWNER)
    lines = err.splitlines()
    assert code == 1 and lines[-1].startswith("lovec: error: ") and len(lines) <= 3 and "acme/odd" in err, err


@pytest.mark.parametrize(
    "headers, message",
    [
        ({"X_Repo_Commit": "../../../../evil"}, "header X-Repo-Commit is '../../../../evil', expected 40 hexadecimal"),
        ({"X_Repo_Commit": 40 * "a", "ETag": '"../../../../../evil"'}, "header ETag is "),
    ],
)
@pytest.mark.parametrize("words", [["--adapter", "acme/wide"], ["--model", "acme/wide"], ["--model", "acme/wide@main"]])
def test_nothing_is_written_outside_of_the_cache(
    words: list[str], headers: dict[str, str], message: str, pushed: Site
) -> None:
    files = dict(next(reversed(pushed.hub.repos["models", "acme/note"].commits.values())))
    pushed.hub.add("models", "acme/wide", {**files, "config.json": b"{}"})

    def wide(request: Handler) -> bool:
        if "/resolve/" not in request.route:
            return False
        request.send(404, X_Error_Code="EntryNotFound", **headers)
        return True

    def outside() -> set[Path]:
        return {p for p in pushed.home.rglob("*") if "cache/hub" not in str(p) or "evil" in str(p)}

    before = outside()
    with faulty(pushed, wide):
        code, _, err = pushed.run("tag", "page.txt", *words, token=OWNER)
    assert code == 1 and message in err and "Traceback" not in err, err
    assert outside() == before


def test_names_of_files_that_lead_out_of_the_cache_are_refused(pushed: Site) -> None:
    pushed.hub.add("models", "acme/dots", {"../../../adapter_config.json": b"{}"})
    code, _, err = pushed.run("tag", "page.txt", "--adapter", "acme/dots", token=OWNER)
    assert code == 1 and "name of a file is '../../../adapter_config.json'" in err, err


def test_a_model_that_is_nowhere_is_said_after_one_request(pushed: Site) -> None:
    asked, begun = len(pushed.hub.asked), time.monotonic()
    code, _, err = pushed.run("tag", "page.txt", "--model", "acme/wohle", token=OWNER)
    assert code == 1 and "there is no model acme/wohle on the hub" in err, err
    assert len(pushed.hub.asked) == asked + 1 and time.monotonic() - begun < 2


def test_a_map_is_not_written_into_the_cache(pushed: Site) -> None:
    code, _, err = pushed.run("calibrate", "acme/note", "--data", "dev.jsonl", token=OWNER)
    assert code == 1 and "lovec export acme/note FOLDER" in err


# Data sets


def test_a_data_set_is_tagged_labelled_and_scored_by_its_name(pushed: Site) -> None:
    rows = [{"id": f"t{i}", "question": "Who was Ada?", "text": f"Ada wrote note {i}. It rained."} for i in range(5)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    repo = pushed.hub.add(
        "datasets", "acme/texts", {"data/train.jsonl": lines, "README.md": b"# Texts\n"}, private=True
    )
    (pushed.home / "texts.jsonl").write_bytes(lines)
    common = ["--adapter", "adapter"]
    code, here, err = pushed.run("tag", "texts.jsonl", "--format", "jsonl", *common)
    assert code == 0, err
    code, there, err = pushed.run("tag", "acme/texts", "--format", "jsonl", *common, token=OWNER)
    assert code == 0 and there == here, err
    words = ["tag", "acme/texts:train", *common, "--out", "hub.jsonl"]
    assert pushed.run(*words, token=OWNER)[0] == 0 and (pushed.home / "hub.jsonl").read_text() == here
    manifest = json.loads((pushed.home / "hub.manifest.json").read_text())
    commit = repo.branches["main"]
    assert manifest["identity"]["source"]["files"] == [f"acme/texts@{commit}:default/train"]
    repo.commit("main", {"data/train.jsonl": lines[: lines.index(b"\n") + 1]})
    code, _, err = pushed.run(*words, token=OWNER)  # the file is not that of the new commit
    assert code == 1 and "another input" in err
    assert pushed.run("tag", f"acme/texts@{commit}:train", *common, "--out", "hub.jsonl", token=OWNER)[0] == 0

    answers = [{"id": f"a{i}", "question": "Who?", "answer": TEXT} for i in range(3)]
    pushed.hub.add("datasets", "acme/answers", {"data/test.parquet": parquet(answers)})
    stages = ["label", "--answers", "acme/answers", "--stages", "sentences", "--out", "labels"]
    code, _, err = pushed.run(*stages)
    assert code == 0 and (pushed.home / "labels/sentences.jsonl").read_text().count("\n") == 3, err
    scored = [{"confidence": i / 20, "label": i % 2} for i in range(20)]
    pushed.hub.add("datasets", "acme/scores", {"data/test.parquet": parquet(scored)})
    code, _out, err = pushed.run("score", "acme/scores:test", "--draws", "0")
    assert code == 0 and (pushed.home / "scores-test.score/index.html").is_file(), err


def test_a_large_data_set_is_streamed(pushed: Site) -> None:
    rows = [{"id": f"t{i}", "text": f"Ada wrote note {i}."} for i in range(6)]
    for kind, data in (("jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode()), ("parquet", parquet(rows))):
        pushed.hub.add("datasets", f"acme/large-{kind}", {f"data/train.{kind}": data})
        words = ["tag", f"acme/large-{kind}", "--format", "jsonl", "--about", "Ada", "--adapter", "adapter"]
        code, streamed, err = pushed.run(*words, STREAMED="1")
        assert code == 0 and streamed.count("\n") == 6, err
        assert not list((pushed.home / "cache" / "datasets").glob(f"acme___large-{kind}/**/*.arrow"))
        code, stored, err = pushed.run(*words)
        assert code == 0 and stored == streamed, err
        assert list((pushed.home / "cache" / "datasets").glob(f"acme___large-{kind}/**/*.arrow"))


def test_data_sets_that_cannot_be_read_are_named(pushed: Site) -> None:
    line = json.dumps({"text": "Ada wrote."}).encode() + b"\n"
    pushed.hub.add("datasets", "acme/two", {"data/train.jsonl": line, "data/test.jsonl": line})
    pushed.hub.add("datasets", "acme/web", {"train.tar": b"\0" * 1024})
    for name, message in (
        ("acme/two", "has several splits; name one as acme/two:SPLIT, of"),
        ("acme/two:dev", "has no split dev; name one"),
        ("acme/nothing", "there is no data set acme/nothing on the hub and no such file or folder here"),
        ("acme/web", "is of the format webdataset, expected parquet, json, csv"),
    ):
        code, _, err = pushed.run("tag", name, "--adapter", "adapter", token=OWNER)
        assert code == 1 and message in err and "Traceback" not in err, err
    code, out, err = pushed.run("tag", "acme/two:test", "--adapter", "adapter")
    assert code == 0 and "Ada wrote." in out, err
