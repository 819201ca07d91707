"""How processes talk: who is let in, what comes back, and what a server survives."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from authority import Authority
from understudy.errors import Refused, SetupError
from understudy.runtime import wire
from understudy.runtime.wire import (
    Call,
    Get,
    Message,
    Meter,
    Peer,
    Refusal,
    Reply,
    Server,
    Service,
    Tls,
    is_loopback,
    refuse,
    refused_stream,
    table_stream,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # for busy machines

TABLE = pa.table({"n": [1, 2, 3], "s": ["a", None, "ü"]})
BEAT = pa.schema([("beat", pa.int8())])


class Got(Message, frozen=True):
    n: int
    body: str


class Echo(Call[Got], frozen=True):
    n: int = 0


class Plain(Call[bool], frozen=True):
    pass


class Stale(Call[None], frozen=True):
    pass


class OfUnit(Call[str], frozen=True):
    unit: str


class Boom(Call[None], frozen=True):
    kind: str


class Odd(Call[int], frozen=True):
    """Answered with something else than it promises."""


class Nonsense(Call[None], frozen=True):
    """Nobody answers it."""


class Epoch(Get[int], frozen=True):
    epoch: int


class Pulse(Get[None], frozen=True):
    beats: int


def get_epoch(get: Epoch) -> flight.FlightDataStream:
    return refused_stream(Refusal.GONE) if get.epoch < 0 else table_stream(TABLE.slice(get.epoch), get.epoch)


def get_pulse(get: Pulse) -> flight.FlightDataStream:
    empty = pa.record_batch([pa.array([], pa.int8())], schema=BEAT)
    return flight.GeneratorStream(BEAT, ((empty, str(i).encode()) for i in range(get.beats)))


def boom(call: Boom, body: bytes) -> None:
    raise {"key": KeyError("unit"), "type": TypeError("no"), "value": ValueError("odd"), "os": OSError(28, "full")}[
        call.kind
    ]


SERVICE = Service(
    calls={
        Echo: lambda call, body: Got(call.n, body[::-1].hex()),
        Plain: lambda call, body: True,
        Stale: lambda call, body: refuse(Refusal.FENCED, "generation 3 runs"),
        OfUnit: lambda call, body: call.unit,
        Boom: boom,
        Odd: lambda call, body: "three",
    },
    gets={Epoch: get_epoch, Pulse: get_pulse},
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server("127.0.0.1:0", "secret", SERVICE)
    yield server
    server.shutdown()


@pytest.fixture
def peer(server: Server) -> Iterator[Peer]:
    peer = Peer(server.address, "secret")
    yield peer
    peer.close()


def raw(server: Server, action: str, body: bytes, *, token: str | None = "secret") -> bytes:
    """A call with any bytes and any token, past Peer's good manners."""
    headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode())]
    with flight.FlightClient(f"grpc+tcp://{server.address}") as client:
        options = flight.FlightCallOptions(timeout=10, headers=headers)
        return b"".join(r.body.to_pybytes() for r in client.do_action(flight.Action(action, body), options))


def packed(header: Any, body: bytes = b"") -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<I", len(head)) + head + body


# -- calls and gets ---------------------------------------------------------------------------------------------


def test_the_address_has_the_port_that_was_found(server: Server) -> None:
    host, port = server.address.split(":")
    assert host == "127.0.0.1" and int(port) == server.port > 0


def test_a_call_takes_a_body_along_and_brings_an_answer_back(peer: Peer) -> None:
    assert peer.call(Echo(3), b"\x00\xffabc") == Reply(Got(3, b"cba\xff\x00".hex()))
    assert peer.call(Echo()).answer == Got(0, "")
    assert peer.call(Plain()).answer is True


def test_a_large_body_comes_through(peer: Peer) -> None:
    """A checkpoint's parts are 8 MiB, twice gRPC's usual limit."""
    body = bytes(range(256)) * (36 << 10)
    assert peer.call(Echo(), body).answer.body == body[::-1].hex()


def test_a_refusal_is_a_value(peer: Peer) -> None:
    reply = peer.call(Stale())
    assert (reply.refused, reply.text) == (Refusal.FENCED, "generation 3 runs")
    with pytest.raises(RuntimeError, match="refused: fenced generation 3 runs"):
        _ = reply.answer
    assert peer.call(Plain()).refused is None


def test_an_epoch_comes_with_its_header(peer: Peer) -> None:
    reply, table = peer.get(Epoch(1))
    assert reply == Reply(1)
    assert table.to_pydict() == TABLE.slice(1).to_pydict()
    _, empty = peer.get(Epoch(3))
    assert empty.num_rows == 0 and empty.schema.names == ["n", "s"]


def test_a_refused_get_is_a_value(peer: Peer) -> None:
    reply, table = peer.get(Epoch(-1))
    assert reply.refused == "gone" and table.num_columns == 0


def test_a_stream_brings_the_metadata_of_each_message(peer: Peer) -> None:
    assert list(peer.stream(Pulse(3))) == [b"0", b"1", b"2"]


def test_a_closed_peer_connects_again(peer: Peer) -> None:
    assert peer.call(Plain()).answer
    peer.close()
    peer.close()
    assert peer.call(Plain()).answer


def test_a_call_whose_connection_is_closed_meanwhile_finds_nobody(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a host is given up while the coordinator speaks to it."""
    closed = wire.connect(peer.address, None)
    closed.close()
    monkeypatch.setattr(peer, "_connected", lambda: closed)
    with pytest.raises(flight.FlightError, match="closed meanwhile"):
        peer.call(Plain())


def test_several_threads_share_a_peer(peer: Peer) -> None:
    answers: dict[int, Any] = {}

    def ask(n: int) -> None:
        answers[n] = peer.call(Echo(n)).answer.n

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: n for n in range(16)}


def test_a_server_that_was_shut_down_leaves_the_next_one_alone() -> None:
    """Arrow's server ends a little after it says so, and closed what had become the socket of the next."""
    for _ in range(60):
        server = Server("127.0.0.1:0", "secret", SERVICE)
        peer = Peer(server.address, "secret")
        try:
            assert peer.call(Plain()).answer
        finally:
            peer.close()
            server.shutdown()


def test_a_peer_that_is_not_there_raises() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody answers, and nobody else can have it
        peer = Peer(f"127.0.0.1:{taken.getsockname()[1]}", "secret")
        with pytest.raises(flight.FlightUnavailableError):
            peer.call(Plain(), timeout_s=5)
        peer.close()


def test_bytes_are_counted_by_category(server: Server) -> None:
    meter = Meter()
    peer = Peer(server.address, "secret", meter)
    peer.call(Echo(), b"x" * 100, category="checkpoint")
    _, table = peer.get(Epoch(0))
    list(peer.stream(Pulse(3)))
    peer.close()
    counted = meter.snapshot()
    assert list(counted) == list(wire.CATEGORIES)
    assert 300 < counted["checkpoint"] < 350, "there, and back in hexadecimal"
    assert table.nbytes < counted["data"] < table.nbytes + 100
    assert counted["heartbeat"] == 3
    assert counted["ack"] == counted["duplicate"] == counted["control"] == 0


# -- who is let in ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "Secret", "secret2", "secre", None])
def test_a_wrong_or_missing_token_is_turned_away_everywhere(server: Server, token: str | None) -> None:
    with pytest.raises(flight.FlightUnauthenticatedError, match="wrong or missing job token") as caught:
        raw(server, "Plain", packed({}), token=token)
    assert wire.is_refused(caught.value)
    stranger = Peer(server.address, token or "")
    with pytest.raises(flight.FlightUnauthenticatedError):
        stranger.get(Epoch(0))
    with pytest.raises(flight.FlightUnauthenticatedError):
        list(stranger.stream(Pulse(1)))
    stranger.close()


def test_calls_that_nobody_offers_are_behind_the_gate_too(server: Server) -> None:
    with flight.FlightClient(f"grpc+tcp://{server.address}") as client:
        for attempt in (client.list_flights, client.list_actions):
            with pytest.raises(flight.FlightUnauthenticatedError):
                list(attempt())


def test_no_handler_sees_a_call_without_the_token() -> None:
    seen: list[Any] = []
    server = Server("127.0.0.1:0", "secret", Service(calls={Echo: lambda call, body: seen.append(call)}))
    try:
        with pytest.raises(flight.FlightUnauthenticatedError):
            raw(server, "Echo", packed({}), token="guess")
        assert seen == []
        raw(server, "Echo", packed({"n": 1}))
        assert seen == [Echo(1)]
    finally:
        server.shutdown()


def test_other_errors_are_not_taken_for_refusals(server: Server) -> None:
    with pytest.raises(flight.FlightError) as caught:
        raw(server, "nonsense", packed({}))
    assert not wire.is_refused(caught.value)
    assert wire.is_refused(flight.FlightUnauthorizedError("no"))


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.0.2.1:0", "example.org:0", "[::]:0"])
def test_the_network_is_not_let_in_without_tls(listen: str) -> None:
    with pytest.raises(Refused, match=r"without TLS would let the network in; pass --tls-cert") as caught:
        Server(listen, "secret", SERVICE)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("listen", [":0", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:-1", ""])
def test_an_address_to_listen_on_is_host_and_port(listen: str) -> None:
    with pytest.raises(SetupError, match=f"cannot listen on {listen!r}: write HOST:PORT, such as") as caught:
        Server(listen, "secret", SERVICE)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("", False),
    ],
)
def test_what_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("address", ["192.0.2.1:5", "example.org:5", "0.0.0.0:5", "[::]:5", ":5", "5"])
def test_a_token_is_not_sent_over_the_network_in_the_clear(address: str) -> None:
    with pytest.raises(Refused, match="without TLS would show the token to the network; pass --tls-cert") as caught:
        Peer(address, "secret")
    assert caught.value.exit_code == 4


def test_a_taken_port_is_the_users_to_solve() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SetupError, match=rf"cannot listen on {address}: the port is taken .* choose another"):
            Server(address, "secret", SERVICE)


def test_two_servers_cannot_share_a_port(server: Server) -> None:
    """gRPC would allow it by default, and calls would go to one or the other."""
    with pytest.raises(SetupError, match="choose another") as caught:
        Server(server.address, "other", SERVICE)
    assert caught.value.exit_code == 3


# -- what a server survives -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\x00\x00",
        packed(b""),
        packed(b"{"),
        packed(b"\xff\xfe"),
        packed(b"[]"),
        packed(b'"text"'),
        packed(b"null"),
        b"\x10\x00\x00\x00{}x",
        b"\xff\xff\xff\xff",
    ],
)
def test_malformed_messages_are_errors_and_the_server_lives_on(server: Server, peer: Peer, message: bytes) -> None:
    with pytest.raises(flight.FlightServerError, match="malformed 'Echo'"):
        raw(server, "Echo", message)
    assert peer.call(Plain()).answer


def test_a_header_longer_than_its_message_is_malformed(server: Server) -> None:
    with pytest.raises(flight.FlightServerError, match="malformed 'Echo': header is longer than the message"):
        raw(server, "Echo", struct.pack("<I", 1000) + b"{}")


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({}, "missing required field `unit`"),
        ({"unit": 5}, "Expected `str`, got `int`"),
        ({"unit": "u", "other": 1}, "unknown field `other`"),
    ],
)
def test_a_message_that_is_not_what_it_should_be_reaches_nobody(server: Server, header: Any, why: str) -> None:
    with pytest.raises(flight.FlightServerError, match=f"malformed 'OfUnit': .*{why}"):
        raw(server, "OfUnit", packed(header))


def test_an_answer_that_is_not_what_it_should_be_is_an_error(peer: Peer) -> None:
    with pytest.raises(flight.FlightError, match="malformed answer to Odd: Expected `int`, got `str`"):
        peer.call(Odd())


@pytest.mark.parametrize("kind", ["key", "type", "value", "os", "unknown"])
def test_a_handler_that_raises_is_an_error_for_the_caller_only(peer: Peer, kind: str) -> None:
    with pytest.raises((flight.FlightError, pa.ArrowException, OSError)):
        peer.call(Boom(kind))
    assert peer.call(Plain()).answer


def test_an_unknown_call_is_an_error(server: Server, peer: Peer) -> None:
    with pytest.raises(flight.FlightServerError, match="unknown call 'Nonsense'"):
        peer.call(Nonsense())
    assert peer.call(Plain()).answer


@pytest.mark.parametrize(
    "ticket", [b"", b"{", b"[]", b"5", b"null", b"{}", b'["nothing", {}]', b'["Epoch", {}]', b'["Epoch"]', b"\xff"]
)
def test_malformed_tickets_are_errors_and_the_server_lives_on(server: Server, peer: Peer, ticket: bytes) -> None:
    options = flight.FlightCallOptions(timeout=10, headers=[(b"authorization", b"Bearer secret")])
    with flight.FlightClient(f"grpc+tcp://{server.address}") as client:
        with pytest.raises(flight.FlightServerError, match="malformed ticket"):
            client.do_get(flight.Ticket(ticket), options).read_all()
    assert peer.get(Epoch(0))[1].num_rows == 3


def test_a_header_nested_beyond_reason_is_an_error(server: Server, peer: Peer) -> None:
    with pytest.raises((flight.FlightError, pa.ArrowException)):
        raw(server, "Echo", packed(b"[" * 100_000))
    assert peer.call(Plain()).answer


@settings(PATIENT)
@given(st.binary(max_size=50), st.binary(max_size=50))
def test_packing_and_unpacking(head: bytes, body: bytes) -> None:
    assert wire._unpack(wire._pack(head, body)) == (head, body)


@settings(PATIENT)
@given(st.binary(max_size=30))
def test_unpacking_anything_gives_a_header_or_a_value_error(message: bytes) -> None:
    try:
        header, _ = wire._unpack(message)
    except ValueError:
        return
    assert isinstance(header, dict)


# -- TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    return Authority(folder / "ours"), Authority(folder / "theirs")


@pytest.fixture(scope="module")
def tls_server(authorities: tuple[Authority, Authority]) -> Iterator[Server]:
    server = Server("0.0.0.0:0", "secret", SERVICE, authorities[0].tls())
    yield server
    server.shutdown()


def test_with_tls_both_sides_know_each_other(tls_server: Server, authorities: tuple[Authority, Authority]) -> None:
    peer = Peer(f"127.0.0.1:{tls_server.port}", "secret", tls=authorities[0].tls())
    assert peer.call(Echo(1), b"ab").answer == Got(1, b"ba".hex())
    assert peer.get(Epoch(0))[1].num_rows == 3
    assert list(peer.stream(Pulse(2))) == [b"0", b"1"]
    peer.close()


def test_with_tls_the_token_is_still_asked_for(tls_server: Server, authorities: tuple[Authority, Authority]) -> None:
    peer = Peer(f"127.0.0.1:{tls_server.port}", "guess", tls=authorities[0].tls())
    with pytest.raises(flight.FlightUnauthenticatedError):
        peer.call(Plain())
    peer.close()


def test_with_tls_a_client_of_another_authority_is_turned_away(
    tls_server: Server, authorities: tuple[Authority, Authority]
) -> None:
    ours, theirs = (a.tls() for a in authorities)
    peer = Peer(f"127.0.0.1:{tls_server.port}", "secret", tls=Tls(theirs.cert, theirs.key, ours.ca))
    with pytest.raises(flight.FlightUnavailableError):
        peer.call(Plain(), timeout_s=5)
    peer.close()


def test_with_tls_a_server_of_another_authority_is_not_trusted(
    tls_server: Server, authorities: tuple[Authority, Authority]
) -> None:
    ours, theirs = (a.tls() for a in authorities)
    peer = Peer(f"127.0.0.1:{tls_server.port}", "secret", tls=Tls(ours.cert, ours.key, theirs.ca))
    with pytest.raises(flight.FlightUnavailableError):
        peer.call(Plain(), timeout_s=5)
    peer.close()


def test_with_tls_nobody_comes_in_without_it(tls_server: Server, authorities: tuple[Authority, Authority]) -> None:
    plain = Peer(f"127.0.0.1:{tls_server.port}", "secret")
    with pytest.raises(flight.FlightUnavailableError):
        plain.call(Plain(), timeout_s=5)
    plain.close()
    ca = Path(authorities[0].tls().ca).read_bytes()
    with flight.FlightClient(f"grpc+tls://127.0.0.1:{tls_server.port}", tls_root_certs=ca) as anonymous:
        with pytest.raises(flight.FlightUnavailableError):
            list(anonymous.do_action(flight.Action("plain", packed({})), flight.FlightCallOptions(timeout=5)))


def test_a_tls_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = Tls(str(tmp_path / "cert"), str(tmp_path / "key"), str(tmp_path / "ca"))
    with pytest.raises(SetupError, match=r"TLS file cannot be read: .*cert"):
        missing.read()
    with pytest.raises(SetupError, match="TLS file cannot be read"):
        Server("0.0.0.0:0", "secret", SERVICE, missing)


@pytest.mark.parametrize("part", ["cert", "key", "ca"])
def test_a_tls_file_that_is_nonsense(tmp_path: Path, authorities: tuple[Authority, Authority], part: str) -> None:
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("not a certificate")
    parts = dict(zip(("cert", "key", "ca"), vars(authorities[0].tls()).values()))
    parts[part] = str(nonsense)
    with pytest.raises(SetupError):
        Server("127.0.0.1:0", "secret", SERVICE, Tls(**parts))
