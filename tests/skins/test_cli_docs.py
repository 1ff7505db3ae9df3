"""docs/cli.md and the guide are true: verbs, options, documents, exit codes, sessions."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.errors
from holdfast.cli import main
from holdfast.cli.app import VERBS, make_app
from holdfast.cli.options import Options
from holdfast.cli.prose import ProgramOptions
from holdfast.cli.query import Question
from holdfast.cli.runs import WaitOptions
from tests.audit_keys import write_keys
from tests.servers import postgresql
from tests.skins.conftest import in_process

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = (ROOT / "docs/cli.md").read_text("utf-8")
GUIDE = (ROOT / "docs/guides/command-line.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", REFERENCE, re.M | re.S))
SCOPE = "team/support"
KEY = "a5" * 32

functions = {name: function for name, function, _ in VERBS}
shared = {field.name for field in fields(Options)}
TOGETHER: dict[str, Any] = {"waiting": WaitOptions, "how": ProgramOptions, "question": Question}
"""Parameters that stand for several options."""


@pytest.mark.parametrize("verb", functions)
def test_every_verb_argument_and_option_is_documented(verb: str):
    section = SECTIONS[verb]
    assert f"holdfast {verb}" in section
    for name, parameter in inspect.signature(functions[verb]).parameters.items():
        if name == "options":
            continue
        if name in TOGETHER:
            assert all(f"--{field.name}" in section for field in fields(TOGETHER[name]))
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            assert f"--{name.replace('_', '-')}" in section, name
        else:
            assert name.upper() in section.partition("\n```")[0], name


def test_no_section_is_about_a_verb_that_is_gone():
    lower = {title for title in SECTIONS if title.islower()}
    assert lower == set(functions)


def test_every_shared_option_is_documented():
    for name in shared:
        assert f"| `--{name.replace('_', '-')}" in SECTIONS["Words that every verb shares"]


@pytest.mark.parametrize("verb", functions)
def test_every_argument_has_help(verb: str, capsys: pytest.CaptureFixture[str]):
    """An argument without help would stand there with its name alone."""
    assert main([*verb.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines[2]) > 20
    described = [line for line in lines if re.match(r"  (-|[A-Z_]+:)", line)]
    wanted = set(inspect.signature(functions[verb]).parameters)
    wanted |= shared if "options" in wanted else set()
    for name in TOGETHER.keys() & wanted:
        wanted |= {field.name for field in fields(TOGETHER[name])}
    assert len(described) >= len(wanted - {"options"} - TOGETHER.keys())
    for line in described:
        assert len(line.partition(":")[2].strip()) > 15, line


def test_every_verb_is_in_the_help(capsys: pytest.CaptureFixture[str]):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for verb in functions:
        first, *rest = verb.split()
        assert re.search(rf"^  {first}: \w.*$", shown, re.M), verb
        app = make_app()[first]
        assert (app[rest[0]] if rest else app).help


def test_help_in_a_pipe_has_one_line_for_each_verb_and_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Agents read it. It was cut at 80 columns, in the middle of an entry."""
    monkeypatch.setenv("COLUMNS", "60")
    for words in (["--help"], ["set", "--help"], ["runs", "--help"]):
        assert main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        listed = lines[next(n for n, line in enumerate(lines) if line.endswith(":")) :]
        for line in listed:
            assert re.fullmatch(r"(|[A-Z][\w ]*:|  [^:]+: .*\S)", line), line


def test_every_exit_code_is_documented():
    table = SECTIONS["Exit codes"]
    for error in vars(holdfast.errors).values():
        if not (isinstance(error, type) and issubclass(error, holdfast.errors.HoldfastError)):
            continue
        if error is not holdfast.errors.HoldfastError:
            assert re.search(rf"^\| {error.exit_code} \|.*`{error.__name__}`", table, re.M)


# The JSON documents.


@pytest.fixture
def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", "store")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Path("commands.toml").write_text('[verify.branch_exists]\ncommand = ["true"]\n')
    Path("commands.toml").chmod(0o600)
    Path("desk_schema.py").write_text(DESK_SCHEMA)
    monkeypatch.delitem(sys.modules, "desk_schema", raising=False)
    Path("endless.prose").write_text('loop:\n  session "again"\n')
    cli("init")
    cli("set", SCOPE, "stage", "triage", "--checkpoint", "one")
    cli("set", SCOPE, "stage", "done")
    cli("task", "add", SCOPE, "review the change")
    cli("set", "conversation/old", "a", "1")
    cli("export", "conversation/old", "--to", "old.jsonl")
    cli("backup", "made")
    with holdfast.open("store") as hf:
        hf.conversation("visit", ttl_s=3600, slides=True).set("page", "prices")
    leave_a_suspect("store")


@pytest.fixture
def subjects_left(filled: None) -> None:
    """A subject with a scope."""
    with holdfast.open("store") as hf:
        hf.conversation(hf.subjects.pseudonym("ada"), subject="ada").set("name", "Ada")
        hf.conversation(hf.subjects.pseudonym("eve"), subject="eve").set("name", "Eve")
        hf.subjects.erase("eve")


@pytest.fixture
def runs_left(filled: None, tiny: Path, monkeypatch: pytest.MonkeyPatch, cli: Any) -> None:
    """A run of each kind: ended, asked, failed, killed within an act, parked."""
    cli("runs", "start", "tiny.py:tiny", "1", "--id", "ended")
    cli("runs", "start", "tiny.py:asks", "--id", "asked", "--leave", code=15)
    cli("runs", "start", "tiny.py:fails", "--id", "failed", code=12)
    killed = in_process("runs", "start", "tiny.py:tiny", "--id", "uncertain", TINY_DIES="1")
    assert killed.returncode == -9
    cli("runs", "fork", "ended", "act", "--new-id", "parked")
    cli("runs", "resume", "parked", "tiny.py", code=13)
    monkeypatch.setenv("TINY_MENDED", "1")


@pytest.fixture
def programs_left(filled: None, cli: Any) -> None:
    """A program that has ended, and one that waits."""
    Path("script.json").write_text("{}")
    Path("text.prose").write_text('output text = session "a"\n')
    Path("asks.prose").write_text('let draft = session "a"\ninput go: "Go?"\n')
    cli("prose", "run", "text.prose", "--id", "ended", "--script", "script.json")
    words = ("--id", "waiting", "--script", "script.json", "--leave")
    cli("prose", "run", "asks.prose", *words, code=15)
    words = ("--id", "shown", "--script", "script.json", "--leave", "--views", ".prose")
    cli("prose", "run", "asks.prose", *words, code=15)


@pytest.fixture
def project_left(filled: None, cli: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project with a task that is done, and a session; then somebody types a line."""
    Path("script.json").write_text("{}")
    Path("typed").write_text("hello\n")
    Path("holdfast.toml").write_text("[project.retention]\ncount = 1\n")
    cli("project", "do", "begin", "--script", "script.json")
    cli("project", "checkpoint", "marked")
    with open("typed", encoding="utf-8") as typed:
        monkeypatch.setattr(sys, "stdin", typed)
        cli("project", "chat", "--script", "script.json")
        typed.seek(0)
        yield


@pytest.fixture
def walked(filled: None, desk_graph: Path, cli: Any) -> None:
    """A graph that was walked twice."""
    for text in ("hi", "a riddle"):
        cli("nodes", "process", "desk_graph.py:planner", SCOPE, "--input", f"text={text}")


def make_repository() -> None:
    """A repository with one commit, and a file that was changed since."""
    words = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
    Path("a.txt").write_text("one\n")
    for step in (["init", "-q"], ["add", "a.txt"], ["commit", "-q", "-m", "begin"]):
        subprocess.run(["git", *words, *step], check=True)
    Path("a.txt").write_text("two\n")


def leave_a_suspect(place: str) -> None:
    """A worker is killed while it holds a lease, a claim and a group's delivery."""
    with holdfast.open(place) as store, store.commit() as tx:
        tx.mark("tasks", "t1")
    killed = subprocess.run([sys.executable, "-c", SUSPECT, place], check=False, timeout=60)
    assert killed.returncode == -9


SUSPECT = """
import os, signal, sys, holdfast
store = holdfast.open(sys.argv[1], actor="ada")
store.workers.lease("nightly", keep=True)
store.workers.claim("tasks", ttl_s=600)
store.workers.group("billing").take()
store.scope("team/support").decide("refund", key="left")
store.scope("team/support").say("hi")
os.kill(os.getpid(), signal.SIGKILL)
"""


DESK_SCHEMA = """
import holdfast, msgspec


@holdfast.schema("team", version=2)
class Desk(msgspec.Struct):
    stage: str
    mood: float = 0.5


@holdfast.upgrade(Desk, 1)
def _(old):
    return old | {"mood": 0.5}
"""


TICKETS = """
import holdfast

@holdfast.projection()
class Tickets:
    def ticket_opened(self, tickets, event):
        tickets[event["data"]["id"]] = {"title": event["data"]["title"], "status": "open"}
"""

COMMANDS = {
    "init": ["init"],
    "boot": ["boot", SCOPE, "--role", "architect"],
    "status": ["status"],
    "scopes": ["scopes"],
    "show": ["show", SCOPE],
    "get": ["get", SCOPE, "stage"],
    "log": ["log", "--limit", "1"],
    "diff": ["diff", SCOPE, "one"],
    "checkpoints": ["checkpoints", SCOPE],
    "follow": ["follow", SCOPE, "--after", "1", "--timeout", "0"],
    "workers": ["workers", "--suspects"],
    "groups": ["groups"],
    "decisions": ["decisions", SCOPE],
    "query": ["query", "--kind", "decision"],
    "similar": ["similar", "state management", "--embedder", "tests.skins.embedders:letters"],
    "sql": ["sql", "select id, status from decisions"],
    "stale": ["stale"],
    "audit": ["audit", SCOPE],
    "architecture": ["architecture"],
    "task list": ["task", "list"],
    "task add": ["task", "add", SCOPE, "review", "--tag", "ui"],
    "task claim": ["task", "claim", SCOPE],
    "task update": ["task", "update", SCOPE, "t1", "--note", "begun"],
    "task close": ["task", "close", SCOPE, "t1", "merged"],
    "messages": ["messages", SCOPE],
    "say": ["say", SCOPE, "hello"],
    "event record": ["event", "record", SCOPE, "ticket_opened", '{"id":"t1","title":"a"}'],
    "event list": ["event", "list"],
    "projection": ["projection", "opened_tickets.py:Tickets"],
    "project do": ["project", "do", "write it", "--script", "script.json"],
    "project chat": ["project", "chat", "--script", "script.json"],
    "project status": ["project", "status"],
    "project watch": ["project", "watch", "--timeout", "0"],
    "project survey": ["project", "survey"],
    "project tasks": ["project", "tasks", "--all"],
    "project sessions": ["project", "sessions"],
    "project stop": ["project", "stop"],
    "project interrupt": ["project", "interrupt", "well?"],
    "project steer": ["project", "steer", "in green"],
    "project follow-up": ["project", "follow-up", "then tea"],
    "project note": ["project", "note", "below the mat"],
    "project checkpoint": ["project", "checkpoint", "before"],
    "project recover": ["project", "recover"],
    "project doctor": ["project", "doctor"],
    "project restore": ["project", "restore", "RALPH_TASKS.md"],
    "project prune": ["project", "prune", "--dry-run"],
    "project rewind": ["project", "rewind", "marked", "--yes"],
    "project alias": ["project", "alias", "ralph", "--to", "bin"],
    "decide": ["decide", SCOPE, "refund", "--because", "broken"],
    "outcome": ["outcome", f"left@{SCOPE}", "looked"],
    "fact": ["fact", SCOPE, "branch", "main"],
    "catch": ["catch", SCOPE, "the refund was not decided"],
    "catch list": ["catch", "list"],
    "catch scan": ["catch", "scan", SCOPE],
    "recover": ["recover"],
    "schema list": ["schema", "list"],
    "schema show": ["schema", "show", "desk_schema.py"],
    "schema diff": ["schema", "diff", "desk_schema.py", SCOPE],
    "migrate": ["migrate", "desk_schema.py", "--check"],
    "set": ["set", SCOPE, "stage", "new"],
    "delete": ["delete", SCOPE, "stage"],
    "remove": ["remove", "conversation/old", "--yes"],
    "checkpoint": ["checkpoint", SCOPE, "two"],
    "touch": ["touch", "conversation/visit"],
    "restore": ["restore", SCOPE, "one"],
    "undo": ["undo", SCOPE],
    "rewind": ["rewind", "marked", "--yes"],
    "rewind mark": ["rewind", "mark", "start", "--scope", SCOPE],
    "rewind list": ["rewind", "list"],
    "rewind undo": ["rewind", "undo", "--yes"],
    "file": ["file", "a.txt"],
    "git status": ["git", "status"],
    "git log": ["git", "log"],
    "git record": ["git", "record", SCOPE],
    "git commit": ["git", "commit", "a.txt", "--scope", SCOPE],
    "git hook": ["git", "hook", SCOPE],
    "rebuild": ["rebuild", "--from-git"],
    "git lost": ["git", "lost"],
    "git merge-driver": ["git", "merge-driver"],
    "fork": ["fork", SCOPE, "b"],
    "session list": ["session", "list"],
    "session export": ["session", "export", SCOPE, "--to", "session.json"],
    "retain": ["retain", "--dry-run"],
    "archive": ["archive", "old", "conversation/*", "--older", "90d", "--dry-run"],
    "unretain": ["unretain"],
    "hold": ["hold", SCOPE],
    "unhold": ["unhold", SCOPE],
    "subject list": ["subject", "list"],
    "subject show": ["subject", "show", "ada"],
    "subject export": ["subject", "export", "ada"],
    "subject erase": ["subject", "erase", "ada", "--yes"],
    "subject hold": ["subject", "hold", "ada"],
    "subject readmit": ["subject", "readmit", "eve"],
    "erase": ["erase", "--match", "milk", "--dry-run"],
    "audit export": ["audit", "export", "export.json", "--sign", "mine.pem"],
    "tenant create": ["tenant", "create", "acme", "--quota", "team/*:events=9"],
    "tenant list": ["tenant", "list"],
    "tenant show": ["tenant", "show", "bolt"],
    "tenant change": ["tenant", "change", "bolt", "--quota", "team/*:events=9"],
    "tenant renew": ["tenant", "renew", "bolt"],
    "tenant remove": ["tenant", "remove", "bolt", "--yes"],
    "key new": ["key", "new"],
    "key status": ["key", "status"],
    "key rotate": ["key", "rotate", "--store", "encrypted", "--store-key", KEY],
    "key rewrap": ["key", "rewrap", "--store", "encrypted", "--store-key", KEY, "--to", KEY[::-1]],
    "trust": ["trust", "commands.toml", "--yes"],
    "secrets": ["secrets", "redact"],
    "expiry": ["expiry", "conversation", "1h"],
    "check": ["check"],
    "doctor": ["doctor"],
    "copy": ["copy", "store", "other"],
    "salvage": ["salvage", "store", "rescued"],
    "backup": ["backup", "saved"],
    "backup list": ["backup", "list", "made"],
    "backup restore": ["backup", "restore", "made", "restored"],
    "backup drill": ["backup", "drill", "made"],
    "backup prune": ["backup", "prune", "made"],
    "export": ["export", SCOPE, "--to", "support.jsonl"],
    "import": ["import", "old.jsonl"],
    "selftest": ["selftest", "--disk", ".", "--seconds", "0.5"],
    "demo": ["demo"],
    "advise": ["advise", "--machines", "1"],
    "runs list": ["runs", "list"],
    "runs show": ["runs", "show", "ended"],
    "runs tail": ["runs", "tail", "ended", "--after", "5"],
    "runs start": ["runs", "start", "tiny.py:tiny", "3"],
    "runs resume": ["runs", "resume", "ended", "tiny.py"],
    "runs retry": ["runs", "retry", "failed", "tiny.py"],
    "runs cancel": ["runs", "cancel", "asked"],
    "runs remove": ["runs", "remove", "ended", "--yes"],
    "runs answer": ["runs", "answer", "asked", "approve", "true"],
    "runs signal": ["runs", "signal", "asked", "hurry"],
    "runs settle": ["runs", "settle", "uncertain", "act", "--done", "1"],
    "runs adopt": ["runs", "adopt", "parked"],
    "runs fork": ["runs", "fork", "ended", "look", "--new-id", "what-if"],
    "prose check": ["prose", "check", "endless.prose"],
    "prose run": ["prose", "run", "text.prose", "--script", "script.json"],
    "prose resume": ["prose", "resume", "ended", "--script", "script.json"],
    "prose show": ["prose", "show", "waiting"],
    "prose restore": ["prose", "restore", "shown", "draft"],
    "prose fork": ["prose", "fork", "waiting", "--edit", "draft=other"],
    "nodes list": ["nodes", "list"],
    "nodes show": ["nodes", "show", "planner", "flags", SCOPE],
    "nodes why": ["nodes", "why", "planner", "picker", SCOPE],
    "nodes plan": ["nodes", "plan", "desk_graph.py:planner", SCOPE, "--input", "text=riddle"],
    "nodes graph": ["nodes", "graph", "desk_graph.py:planner"],
    "nodes process": ["nodes", "process", "desk_graph.py:planner", SCOPE, "--input", "text=hi"],
    "nodes accept": [
        "nodes",
        "accept",
        "desk_graph.py:planner",
        "flags",
        SCOPE,
        "--input",
        "text=ho",
    ],
    "nodes invalidate": ["nodes", "invalidate", "planner", SCOPE],
    "nodes forget": ["nodes", "forget", "planner", SCOPE],
    "views write": ["views", "write", "notes"],
    "views watch": ["views", "watch", "notes", "--timeout", "0"],
    "views status": ["views", "status", "notes"],
    "views accept": ["views", "accept", "TASKS.md", "notes"],
    "views reject": ["views", "reject", "TASKS.md", "notes"],
}


def example(section: str) -> Any:
    found = re.findall(r"^```json\n(.*?)^```$", section, re.M | re.S)
    return json.loads(found[-1])


def compare(documented: Any, printed: Any, where: str = "") -> None:
    """A printed document has exactly the documented fields, also inside lists that have items."""
    if isinstance(documented, dict) and documented and isinstance(printed, dict):
        assert printed.keys() == documented.keys(), where
        for key, value in documented.items():
            compare(value, printed[key], f"{where}.{key}")
    elif isinstance(documented, list) and documented and isinstance(documented[0], dict):
        assert isinstance(printed, list), where
        for item in printed:
            compare(documented[0], item, f"{where}[]")


@pytest.mark.parametrize("verb", functions)
def test_every_document_has_the_documented_fields(
    verb: str, filled: None, cli: Any, request: pytest.FixtureRequest
):
    if verb.startswith("project "):
        request.getfixturevalue("project_left")
    if verb.startswith("runs"):
        request.getfixturevalue("runs_left")
    if verb.startswith("nodes"):
        request.getfixturevalue("walked")
    if verb.startswith("prose"):
        request.getfixturevalue("programs_left")
    if verb.startswith("rewind"):
        cli("rewind", "mark", "marked", "--scope", SCOPE)
    if verb.startswith("views"):
        Path("notes").mkdir()
        config = f'[views]\nscope = "{SCOPE}"\n[views.files]\n"TASKS.md" = "tasks"\n'
        Path("notes/holdfast.toml").write_text(config)
        cli("views", "write", "notes")
        with Path("notes/TASKS.md").open("a") as file:
            file.write("- [ ] call ann\n")
    if verb in ("file", "rebuild") or verb.startswith("git"):
        make_repository()
        cli("git", "record", SCOPE)
    if verb == "rewind undo":
        cli("rewind", "marked", "--yes")
    if verb in ("event list", "projection"):
        cli(*COMMANDS["event record"])
        Path("opened_tickets.py").write_text(TICKETS)
    if verb == "catch list":
        cli(*COMMANDS["catch"])
    if verb == "catch scan":
        cli("say", SCOPE, "We decided to refund the whole order.")
    if verb == "unhold":
        cli(*COMMANDS["hold"])
    if verb in ("key rotate", "key rewrap"):
        cli("init", "--store", "encrypted", "--store-key", KEY)
    if verb.startswith("subject"):
        request.getfixturevalue("subjects_left")
    if verb == "audit export":
        write_keys(Path(), "mine")
    if verb == "tenant renew":  # of tenants with passwords, which are those of a server
        running = postgresql.server(postgresql.NEWEST)
        running.create_database("renewed")
        request.getfixturevalue("monkeypatch").setenv("HOLDFAST_STORE", running.url("renewed"))
    if verb.startswith("tenant"):
        cli("tenant", "create", "bolt")
    code = int(verb == "migrate")  # --check has found one
    printed = cli(*COMMANDS[verb], "--json", code=code).document
    documented = example(SECTIONS[verb])
    if verb == "status":  # a backend may add facts of its own
        printed = {key: value for key, value in printed.items() if key in documented}
    compare(documented, printed)


def test_errors_have_the_documented_fields(filled: None, cli: Any):
    failed = cli("set", SCOPE, "a", "1", "--expected", "9", "--json", code=5)
    compare(example(SECTIONS["Exit codes"]), json.loads(failed.err))


CLI = Path(holdfast.__file__).parent / "cli"


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.stem)
def test_every_document_is_made_by_render(path: Path):
    """Other skins show the same documents, so no verb puts one together itself."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "print_json",
            "print_json_line",
        ):
            assert re.match(r"\w+_document\(", ast.unparse(node.args[0])), node.lineno


# The guide.


def test_the_guide_shows_what_really_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Each command of the guide prints what stands under it; `…` stands for what differs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    monkeypatch.setenv("HOLDFAST_ACTOR", "ada")
    assert play(GUIDE, capsys) > 15
    assert sorted(os.listdir()) == ["desk", "desk.db", "desk.db-witness"]


def play(guide: str, capsys: pytest.CaptureFixture[str]) -> int:
    """Types every command of a guide, compares what it prints, and returns how many there were."""
    blocks = re.findall(r"^```console\n(.*?)^```$", guide, re.M | re.S)
    count = 0
    for command, expected in re.findall(r"^\$ ([^\n]+)\n((?:(?!\$ ).*\n)*)", "".join(blocks), re.M):
        program, *words = shlex.split(command)
        assert program == "holdfast"
        capsys.readouterr()
        main(words)
        printed = capsys.readouterr()
        pattern = re.escape(expected).replace("…", r"[^\n\t]*")
        assert re.fullmatch(pattern, printed.out + printed.err), f"{command}\n{printed.out}"
        count += 1
    return count
