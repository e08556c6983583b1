"""`swarm-peer invite`, `invites` and `revoke` in a home, and the invite as a file or on standard input."""

from __future__ import annotations

import io
import json
import stat
import time
from pathlib import Path

import pytest
from authority import Authority
from coordinators_home import RUN, coordinators_home, record

from peers import cli
from peers.coordinator.invites import listed
from peers.coordinator.organiser_key import organiser_key
from peers.coordinator.pass_book import PRINTED, PassBook
from peers.run.home import Home
from peers.run.invite_text import read_invite
from peers.runtime import control_client
from peers.runtime.control_client import Reply
from swarm.net.invite import Invite, InviteError, parse
from swarm.protocol.admissions import Device

HOUR_S = 3600


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return coordinators_home(tmp_path / "home")


def run(capsys: pytest.CaptureFixture[str], home: Home, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main([*words, "--home", str(home.path)])
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def test_an_invite_leads_where_the_printed_one_does_and_holds_a_pass_of_its_own(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, home, "invite", "--name", "alice", "--devices", "2", "--expires", "12h")
    assert code == 0 and out.startswith("swarm-peer join swarm3-")
    made, printed = parse(out.removeprefix("swarm-peer join ")), parse(home.join_token.read_text())
    assert (made.addresses, made.coordinator, made.fingerprint) == (
        printed.addresses,
        printed.coordinator,
        printed.fingerprint,
    )
    assert made.ticket is not None and printed.ticket is not None and made.ticket != printed.ticket
    given = made.ticket.given
    assert (given.name, given.devices) == ("alice", 2) and 0 < given.expires_at - time.time() <= 12 * HOUR_S
    for path in home.passes.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    code, _, err = run(capsys, home, "invite", "--name", "alice")
    assert code == 2 and "there is a pass called 'alice' already" in err
    code, out, _ = run(capsys, home, "invite", "--name", "bob", "--json")
    assert code == 0 and json.loads(out)["devices"] == 1 and parse(json.loads(out)["invite"]).run_hash == RUN


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("invite", "--name", "a/b"), "cannot name a pass"),
        (("invite", "--name", "bob", "--expires", "soon"), "is no duration: write 12h, 30d or 8w"),
        (("invite", "--name", "bob", "--devices", "0"), "greater than or equal to 1"),
        (("revoke", "bob"), "no pass is called 'bob'"),
        (("revoke", PRINTED), "no coordinator runs in"),
    ],
)
def test_what_cannot_be_made_or_taken_back(
    home: Home, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    code, _, err = run(capsys, home, *words)
    assert code == 2 and says in " ".join(err.replace("│", " ").split())


def test_homes_that_cannot_invite(home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, Home(tmp_path / "empty"), "invites")
    assert code == 2 and "no run was coordinated in" in err
    home.organiser_key.unlink()
    for _ in range(2):
        code, _, err = run(capsys, home, "invite", "--name", "alice")
        assert code == 2 and "the organiser's key of this run is not in" in err
        assert not home.organiser_key.exists(), "none is made for that"
    home.organiser_key.write_bytes(bytes(range(32)))
    code, _, err = run(capsys, home, "invite", "--name", "alice")
    assert code == 2 and "the organiser's key of this run is not in" in err


def test_the_list_tells_who_has_joined_from_the_record(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for name, devices in (("alice", "2"), ("bob", "1"), ("carol", "3")):
        run(capsys, home, "invite", "--name", name, "--devices", devices)
    serials = {row.given.name: row.given.serial.hex() for row in listed(home.path)}
    record(
        home,
        ("admit", Device(serials["alice"], 2, "QmOne").value),
        ("admit", Device(serials["alice"], 2, "QmTwo").value),
        ("admit", Device(serials["bob"], 1, "QmThree").value),
        ("admit", Device(serials["carol"], 3, "QmFour").value),
        ("admit", Device(serials["carol"], 3, "QmFive").value),
        ("expel", "QmFour"),
        ("expel", "QmFive"),
        ("revoke", serials["bob"]),
    )
    now = time.time()
    assert {row.given.name: (row.joined, row.state(now)) for row in listed(home.path)} == {
        "alice": (2, "used up"),
        "bob": (1, "revoked"),
        "carol": (2, "closed: 2 devices are expelled"),
        PRINTED: (0, "open"),
    }
    assert {row.state(now + 400 * 86_400) for row in listed(home.path) if row.given.name == PRINTED} == {"expired"}
    code, out, _ = run(capsys, home, "invites")
    assert code == 0 and "alice" in out and serials["alice"][:8] in out and "2 of 2" in out
    code, out, _ = run(capsys, home, "invites", "--json")
    assert code == 0 and [row["name"] for row in json.loads(out)] == ["alice", "bob", "carol", PRINTED]


def test_a_pass_is_revoked_by_its_name(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[object, ...]] = []

    def send(*what: object) -> Reply:
        asked.append(what)
        return Reply(1, "nobody joins with that pass any more", {})

    monkeypatch.setattr(control_client, "send", send)
    code, out, _ = run(capsys, home, "revoke", PRINTED, "--why", "it leaked")
    assert (code, out) == (0, "nobody joins with that pass any more\n")
    assert asked[0][1:3] == ("revoke", listed(home.path)[0].given.serial.hex()) and asked[0][4] == "it leaked"


def test_the_printed_pass_stays_until_it_is_too_small(home: Home) -> None:
    key, book = organiser_key(home), PassBook(home, RUN)
    before = book.printed(key, 8)
    assert book.printed(key, 4) == before == book.printed(key, 8)
    larger = book.printed(key, 9)
    assert larger.given.devices == 9 and book.printed(key, 8) in (before, larger)
    assert not PassBook(home, "cd" * 32).tickets(), "passes of another run are no business of this one"


def test_an_invite_comes_as_text_from_a_file_or_on_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = Authority().coordinator.peer_id
    address, ticket, key = f"/ip4/203.0.113.5/tcp/4001/p2p/{me}", Authority().ticket(RUN), Authority().run_key(RUN)
    made = Invite((address,), me, RUN, "0123-4567-89ab-cdef", ticket, key)
    path = tmp_path / "invite"
    path.write_text(made.encode() + "\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(made.encode() + "\n"))
    assert read_invite(made.encode()) == read_invite(f"@{path}") == read_invite("-") == made
    with pytest.raises(InviteError, match=r"no invite file .*missing: save the invite there"):
        read_invite(f"@{tmp_path / 'missing'}")
    for no_file in ("@", f"@{tmp_path}"):
        with pytest.raises(InviteError, match="names no file"):
            read_invite(no_file)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InviteError, match=rf"^{path}: .* is neither an invite"):
        read_invite(f"@{path}")
    for given, says in ((b"", "is empty: it must"), (b"hello", ": 'hello' is neither"), (b"\xff", "is not text")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
        with pytest.raises(InviteError, match=f"^standard input {says}".replace(" :", ":")):
            read_invite("-")


def test_a_damaged_file_with_the_printed_invite_is_named(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.join_token.write_bytes(b"\xff\xfe")
    for words in (("invites",), ("invite", "--name", "bob"), ("revoke", "bob")):
        code, _, err = run(capsys, home, *words)
        assert code == 2 and "join-token is damaged" in err and "which writes it anew" in err
