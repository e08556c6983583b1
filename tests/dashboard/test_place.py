"""Where a dashboard is served, as people write it."""

import pytest

from peers.cli import _with_places
from peers.dashboard.place import Place, PlaceError, server_name
from peers.dashboard.process import DashboardError, listen


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", Place("127.0.0.1", 7070, True)),
        ("8080", Place("127.0.0.1", 8080, False)),
        ("127.0.0.1:8080", Place("127.0.0.1", 8080, False)),
        ("localhost:0", Place("127.0.0.1", 0, False)),
        ("0.0.0.0", Place("0.0.0.0", 7070, True)),
        ("[::1]:8080", Place("::1", 8080, False)),
    ],
)
def test_what_people_write(text: str, place: Place) -> None:
    assert Place.parse(text) == place
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize("text", ["RUN.toml", "example.org:80", "1.2.3.4:99999", "1.2.3:80", "::1", "/ip4/1.2.3.4"])
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(PlaceError):
        Place.parse(text)


def test_dashboard_may_stand_alone() -> None:
    assert _with_places(["--dashboard", "swarm1-abc"]) == ["--dashboard=", "swarm1-abc"]
    assert _with_places([]) == [] and _with_places(["x"]) == ["x"]
    assert _with_places(["x", "--dashboard"]) == ["x", "--dashboard="]
    assert _with_places(["--dashboard", "8080", "x"]) == ["--dashboard", "8080", "x"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("1:99999", "'1' is not an IP"),
        ("1.2.3.4:99999", "port 99999"),
        ("123456", "port 123456"),
        (":" + "9" * 5000, "port 9"),
    ],
)
def test_a_wrong_place_is_told_and_not_taken_for_the_next_argument(wrong: str, says: str) -> None:
    assert _with_places(["--dashboard", wrong, "x"]) == ["--dashboard", wrong, "x"]
    with pytest.raises(PlaceError, match=says):
        Place.parse(wrong)


def test_a_taken_port_is_passed_over_when_it_was_only_a_wish() -> None:
    with listen(Place(port=0, wish=False)) as taken:
        port = taken.getsockname()[1]
        with listen(Place(port=port, wish=True)) as other:
            assert other.getsockname()[1] > port
        with pytest.raises(DashboardError, match="another ADDRESS:PORT"):
            listen(Place(port=port, wish=False))


def test_names_of_a_server_are_taken_in_lower_case():
    assert [server_name(name) for name in ("Swarm.Example", "box", "7.my_host")] == [
        "swarm.example",
        "box",
        "7.my_host",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("::1", "use --address"),
        ("[::1]:7070", "use --address"),
        ("0.0.0.0", "use --address"),
        ("swarm.example:443", "without a port"),
        ("https://swarm.example", "write only the name"),
        ("*", "is not a name"),
        ("", "is not a name"),
    ],
)
def test_what_is_no_name_of_a_server_is_refused(text: str, says: str):
    with pytest.raises(PlaceError, match=says):
        server_name(text)
