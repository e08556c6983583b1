"""Who may do what, and what a foreign site can make a browser do: nothing."""

from __future__ import annotations

import http.client
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from served_dashboard import Dashboard, dashboard, generated_home

from benchmarks.generated_log import Shape

TINY = Shape(peers=4, stages=2, hours=0.05, step_seconds=20)
STEERING = (
    ("POST", "/api/v1/control", {"command": "pause"}),
    ("POST", "/api/v1/exports", {"version": 1}),
    ("GET", "/api/v1/join", None),
    ("GET", "/downloads/checkpoints/1/0", None),
    ("GET", "/downloads/exports/version-1", None),
)
OWN = {"X_Swarm_Peer": "1"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated_home(tmp_path_factory.mktemp("home"), TINY)


@pytest.fixture(scope="module")
def local(home: Path) -> Iterator[Dashboard]:
    with dashboard(home) as running:
        yield running


@pytest.fixture(scope="module")
def exposed(home: Path) -> Iterator[Dashboard]:
    """Reachable by a name, through a proxy for example."""
    with dashboard(home, "--host", "run.example", "--database", home / "other.sqlite") as running:
        yield running


@pytest.fixture(scope="module")
def public(home: Path) -> Iterator[Dashboard]:
    with dashboard(home, "--host", "run.example", "--public", "--database", home / "third.sqlite") as running:
        yield running


def test_on_loopback_reading_is_free_and_steering_is_not(local: Dashboard) -> None:
    assert local.get("/api/v1/session") == {
        "access": "read",
        "token_needed": False,
        "public": False,
        "observed": False,
    }
    assert local.get("/api/v1/run")["control"] is False
    for method, path, body in STEERING:
        answer = local.ask(path, method, body, Origin=local.address.rstrip("/"), **OWN)
        assert answer.status == 403 and "organiser" in answer.json["error"], path


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "x@127.0.0.1", ""]
)
def test_a_foreign_host_is_refused(local: Dashboard, host: str) -> None:
    for path in ("/", "/api/v1/run", "/static/app.js", "/events", "/metrics"):
        assert local.ask(path, Host=host).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:7070", "[::1]:7070", "192.168.1.7:7070"])
def test_numbers_and_localhost_lead_here(local: Dashboard, host: str) -> None:
    assert local.ask("/api/v1/run", Host=host).status == 200


def test_two_hosts_are_none(local: Dashboard) -> None:
    with socket.create_connection(("127.0.0.1", local.port), 10) as raw:
        raw.sendall(b"GET /api/v1/run HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
        assert raw.recv(100).split()[1] in (b"400", b"421")


def test_another_site_cannot_make_a_browser_ask(local: Dashboard) -> None:
    for site in ("cross-site", "same-site"):
        assert local.ask("/api/v1/run", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors").status == 403
        assert local.ask("/events", Sec_Fetch_Site=site, Sec_Fetch_Mode="cors").status == 403
        framed = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"}
        assert local.ask("/", Sec_Fetch_Site=site, **framed).status == 403
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert local.ask("/", **link).status == 200, "a link to the page may be followed"
    assert "access-control-allow-origin" not in local.ask("/api/v1/run", Origin="https://evil.example").headers


def test_every_answer_binds_the_browser(local: Dashboard) -> None:
    for path in ("/", "/api/v1/run", "/nothing", "/static/app.js", "/api/v1/peers?limit=-1"):
        headers = local.ask(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
    assert local.ask("/api/v1/run", Host="evil.example").headers["x-content-type-options"] == "nosniff"


def _signed_in(shown: Dashboard, token: str) -> str:
    origin = shown.address.rstrip("/")
    answer = shown.ask("/api/v1/session", "POST", {"token": token}, Origin=origin, **OWN)
    assert answer.status == 200, answer.body
    cookie = answer.headers["set-cookie"]
    assert re.search(r"; HttpOnly", cookie) and re.search(r"; SameSite=strict", cookie, re.IGNORECASE)
    assert token not in cookie
    return cookie.partition(";")[0]


def test_the_token_becomes_a_cookie_that_steers(local: Dashboard) -> None:
    cookie, origin = _signed_in(local, local.token), local.address.rstrip("/")
    assert local.get("/api/v1/session", Cookie=cookie)["access"] == "organiser"
    command = {"command": "pause"}
    answer = local.ask("/api/v1/control", "POST", command, Cookie=cookie, Origin=origin, **OWN)
    assert answer.status == 503, "no coordinator runs here, but it was asked"
    left = local.ask("/api/v1/session", "DELETE", Cookie=cookie, Origin=origin, **OWN)
    assert left.status == 200 and "Max-Age=0" in left.headers["set-cookie"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X_Swarm_Peer": "1"},
        {"X_Swarm_Peer": "1", "Origin": "https://evil.example"},
        {"X_Swarm_Peer": "1", "Origin": "http://127.0.0.1:1"},
        {"X_Swarm_Peer": "1", "Origin": "null"},
        {"Origin": "own"},
        {"X_Swarm_Peer": "0", "Origin": "own"},
    ],
)
def test_a_cookie_alone_changes_nothing(local: Dashboard, headers: dict[str, str]) -> None:
    """What a form or script of another site can send: the cookie, but neither our header nor our origin."""
    cookie = _signed_in(local, local.token)
    given = {key: local.address.rstrip("/") if value == "own" else value for key, value in headers.items()}
    for method, path in (("POST", "/api/v1/control"), ("POST", "/api/v1/exports"), ("DELETE", "/api/v1/session")):
        answer = local.ask(path, method, {"command": "pause", "version": 1}, Cookie=cookie, **given)
        assert answer.status == 403, path


def test_elsewhere_reading_needs_a_token_too(exposed: Dashboard) -> None:
    assert exposed.read_token is not None
    assert exposed.get("/api/v1/session")["token_needed"] is True
    for path in ("/api/v1/run", "/api/v1/peers/x", "/events", "/metrics", "/api/v1/trace", "/api/v1/exports"):
        assert exposed.ask(path).status == 401, path
    assert exposed.ask("/").status == 200, "the page itself tells nothing, and asks for the token"
    assert exposed.get("/api/v1/run", Authorization=f"Bearer {exposed.read_token}")["step"] is not None
    assert exposed.get("/api/v1/run", Cookie=_signed_in(exposed, exposed.read_token))
    for method, path, body in STEERING:
        own = {"Authorization": f"Bearer {exposed.read_token}", **OWN}
        assert exposed.ask(path, method, body, **own).status == 403, path
    assert exposed.ask("/api/v1/join", Authorization=f"Bearer {exposed.token}").status == 404, "no invite in this home"
    assert exposed.ask("/", Host="run.example").status == 200


def test_wrong_tokens_are_few(exposed: Dashboard) -> None:
    answers = [exposed.ask("/api/v1/run", Authorization=f"Bearer {number:040}") for number in range(14)]
    assert [answer.status for answer in answers[:8]] == [401] * 8 and answers[-1].status == 429
    assert answers[-1].json["retry_after_s"] > 0 and int(answers[-1].headers["retry-after"]) > 0
    origin = exposed.address.rstrip("/")
    for wrong in ("", "x" * 40):
        assert exposed.ask("/api/v1/session", "POST", {"token": wrong}, Origin=origin, **OWN).status == 429


def test_whoever_gives_wrong_tokens_keeps_nobody_out(exposed: Dashboard) -> None:
    """Users of one machine have one address, and so do all who come through a proxy."""
    while exposed.ask("/api/v1/run", Authorization="Bearer " + "x" * 40).status != 429:
        pass
    assert exposed.get("/api/v1/run", Authorization=f"Bearer {exposed.read_token}")
    assert exposed.get("/api/v1/session", Cookie=_signed_in(exposed, exposed.token))["access"] == "organiser"


def test_the_public_sees_no_address(public: Dashboard, home: Path) -> None:
    assert public.get("/api/v1/session") == {
        "access": "public",
        "token_needed": False,
        "public": True,
        "observed": False,
    }
    log = home / "events.jsonl"
    text = "dial /ip4/203.0.113.7/tcp/4001 and 198.51.100.9:80 or 2001:db8::7, kept in /home/alice/x at 12:34:56"
    with log.open("a") as file:
        file.write('{"at": 1790000190.0, "kind": "RunPaused", "reason": "' + text + '"}\n')
    found = public.wait("/api/v1/run", lambda run: "dial" in run["state"]["reason"] + str(run["trouble"]))
    lines = public.get("/api/v1/log")
    for answer in (str(found), str(lines)):
        for secret in ("203.0.113.7", "4001", "198.51.100.9", "2001:db8", "alice"):
            assert secret not in answer
        assert "12:34:56" in answer
    whole = public.get("/api/v1/log", Authorization=f"Bearer {public.token}")
    assert "203.0.113.7" in str(whole), "the organiser sees it"


def test_the_public_sees_no_path_of_a_failed_export(public: Dashboard, home: Path) -> None:
    shard = home / "archive" / "00000007" / "stage-0.safetensors"
    shard.parent.mkdir(parents=True)
    shard.touch()
    (home / "exports").touch()  # where the folder should be
    try:
        assert public.act("/api/v1/exports", {"version": 7}).status == 202
        for path in ("/api/v1/exports", "/api/v1/checkpoints"):
            answer = public.wait(path, lambda answer: [each["state"] for each in answer["exports"]] == ["failed"])
            assert answer["exports"][0]["text"] == "[Errno 17] File exists: '(address)"
        whole = public.get("/api/v1/exports", Authorization=f"Bearer {public.token}")
        assert str(home / "exports") in whole["exports"][0]["text"], "the organiser sees it"
    finally:
        shutil.rmtree(home / "archive")
        (home / "exports").unlink()


def test_files_of_tokens_are_the_owners_alone(exposed: Dashboard, home: Path) -> None:
    for name in ("dashboard.token", "dashboard.token-read"):
        assert stat.S_IMODE((home / name).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "body", [b"x" * 20_000, b"[" * 10_000, b"", b"[]", b"\xff\xfe", b'{"token": 5e999}', b'{"token": {}}']
)
def test_bodies_that_mean_nothing(local: Dashboard, body: bytes) -> None:
    answer = local.ask("/api/v1/session", "POST", body, Origin=local.address.rstrip("/"), **OWN)
    assert answer.status in (400, 401, 413) and answer.json["error"]


def test_a_body_without_an_end_is_cut_off(local: Dashboard) -> None:
    head = "POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Swarm-Peer: 1\r\nOrigin: http://127.0.0.1\r\n"
    with socket.create_connection(("127.0.0.1", local.port), 10) as raw:
        raw.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        raw.sendall((b"1000\r\n" + b"x" * 4096 + b"\r\n") * 5)
        assert raw.recv(100).split()[1] == b"413"


def test_heads_and_addresses_that_are_too_long(local: Dashboard) -> None:
    assert local.ask("/api/v1/peers?q=" + "x" * 5_000).status == 414
    assert local.ask("/api/v1/run", X_Long="x" * 40_000).status in (400, 431)
    assert local.ask("/api/v1/run").status == 200


def test_deleted_tokens_end_a_running_stream(tmp_path: Path) -> None:
    home = generated_home(tmp_path / "home", TINY)
    with dashboard(home, "--host", "run.example") as shown:
        connection = http.client.HTTPConnection("127.0.0.1", shown.port, timeout=60)
        connection.request("GET", "/events?topics=run", headers={"Authorization": f"Bearer {shown.read_token}"})
        stream = connection.getresponse()
        assert stream.readline().startswith(b"retry")
        for file in home.glob("dashboard.token*"):
            file.unlink()
        with (home / "events.jsonl").open("a") as log:
            log.write('{"at": 1790000200.0, "kind": "RunPaused", "reason": "the last line"}\n')
        assert b"the last line" not in stream.read(), "the stream has ended"
        assert shown.ask("/api/v1/run", Authorization=f"Bearer {shown.read_token}").status == 401
        new = (home / "dashboard.token").read_text().strip()
        assert shown.get("/api/v1/session", Authorization=f"Bearer {new}")["access"] == "organiser"
