"""How processes talk: Arrow Flight with a token on every call.

A *call* is a Flight action: a message in JSON with an optional binary body, and an answer in JSON. A *get* is a Flight
stream: an epoch, whose schema metadata carries the answer, or a pulse. What can be said is in ``messages.py``: every
message is a class, decoded and checked here, once, and whoever handles it can rely on its fields. Refusals that the
protocol expects (a stale generation, a stream that has moved) come back as ``Reply.refused``, not as exceptions;
anything else raises ``flight.FlightError``.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from ipaddress import ip_address
from typing import Any, Generic, TypeVar, cast, get_args

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is loaded; strangers at the door are no news

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from understudy import cut_times
from understudy.errors import Refused, SetupError

HEADER_KEY = b"understudy"
_AUTHORIZATION = "authorization"
HA_CATEGORIES = ("checkpoint", "ack", "heartbeat", "duplicate")
"""What is sent only so that a crash can be survived."""
CATEGORIES = ("data", *HA_CATEGORIES, "control")
"""``data`` is what the job would send anyway; all others but ``control`` are the price of protection."""


class Meter:
    """Bytes sent and received, by category. Counts headers and bodies; TCP and HTTP/2 framing is not seen."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: Counter[str] = Counter()

    def add(self, category: str, count: int) -> None:
        with self._lock:
            self._bytes[category] += count

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return {c: self._bytes[c] for c in CATEGORIES}


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files. With ``ca`` both sides show a certificate that it has signed."""

    cert: str
    key: str
    ca: str

    def read(self) -> tuple[bytes, bytes, bytes]:
        try:
            parts = []
            for path in (self.cert, self.key, self.ca):
                with open(path, "rb") as file:
                    parts.append(file.read())
            return parts[0], parts[1], parts[2]
        except OSError as error:
            raise SetupError(f"TLS file cannot be read: {error}") from None


class Refusal(StrEnum):
    """Why a call was not carried out, where that is to be expected."""

    FENCED = "fenced"
    """Whoever asks speaks for a generation that was replaced: it must stop."""
    ELSEWHERE = "elsewhere"
    """What is asked for is not here, or not here any more; a plan says where."""
    UNREACHABLE = "unreachable"
    """Nobody answered. Said by the asking end itself."""
    LATER = "later"
    """Not yet: ask again."""
    GONE = "gone"
    """It was here, and nobody has it any more."""
    NOTHING = "nothing"
    """There is none yet."""
    STOPPED = "stopped"
    """To Spark: the stage has ended."""
    DISK = "disk"
    DAMAGED = "damaged"
    """What came is not what was sent, or does not fit what is held."""
    STALE = "stale"
    """A newer plan has come before this one."""
    STRANGER = "stranger"
    """The plan was made for an earlier process of this host."""
    JOB = "job"
    SETUP = "setup"
    POLICY = "policy"
    """The user's job, this machine, or the policy asked for, cannot be; the text says why."""


A = TypeVar("A")
T = TypeVar("T")
"""What a message is answered with."""


class Message(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one process says to another."""


class Call(Message, Generic[A], frozen=True):
    """Something to be done, answered with an ``A``. Goes by the name of its class."""


class Get(Message, Generic[A], frozen=True):
    """Something to be sent as a stream, described by an ``A``. Goes by the name of its class."""


class _Envelope(Message, frozen=True):
    refused: Refusal | None = None
    text: str = ""
    answer: msgspec.Raw = msgspec.Raw(b"null")


@dataclass(frozen=True)
class Reply(Generic[A]):
    """An answer, or why there is none."""

    value: A | None = None
    refused: Refusal | None = None
    text: str = ""

    @property
    def answer(self) -> A:
        """What was answered. Raises RuntimeError when the call was refused."""
        if self.refused is not None:
            raise RuntimeError(f"refused: {self.refused} {self.text}")
        return cast(A, self.value)

    def encoded(self) -> bytes:
        if self.refused is not None:
            return msgspec.json.encode(_Envelope(self.refused, self.text))
        return msgspec.json.encode(_Envelope(answer=msgspec.Raw(msgspec.json.encode(self.value))))


def refuse(reason: Refusal, text: str = "") -> Reply[Any]:
    return Reply(refused=reason, text=text)


def prepare(*types: Any) -> None:
    """Have it worked out how these types are decoded. msgspec does that when it is first asked to, and shows a second
    thread that asks meanwhile what is half done: the process crashes. So it is done where modules are loaded, which is
    one at a time, and not where requests are answered."""
    for each in types:
        msgspec.json.Decoder(each)


def prepare_messages() -> None:
    """The same of all calls and gets there are, and of their answers."""
    for kind in (*Call.__subclasses__(), *Get.__subclasses__()):
        prepare(kind, _answer_type(kind))


prepare(_Envelope)


@cache
def _answer_type(kind: type[Call[A] | Get[A]]) -> Any:
    return get_args(kind.__orig_bases__[0])[0]  # type: ignore[union-attr]


def _opened(kind: type[Call[A] | Get[A]], encoded: bytes) -> Reply[A]:
    """The reply to a message of this kind. Raises FlightError when it is none."""
    try:
        envelope = msgspec.json.decode(encoded, type=_Envelope)
        if envelope.refused is not None:
            return refuse(envelope.refused, envelope.text)
        return Reply(msgspec.json.decode(envelope.answer, type=_answer_type(kind)))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise flight.FlightInternalError(f"malformed answer to {kind.__name__}: {error}") from None


def _pack(head: bytes, body: bytes) -> bytes:
    return struct.pack("<I", len(head)) + head + body


def _unpack(message: bytes) -> tuple[bytes, bytes]:
    if len(message) < 4:
        raise ValueError("message too short")
    (length,) = struct.unpack_from("<I", message)
    if 4 + length > len(message):
        raise ValueError("header is longer than the message")
    return message[4 : 4 + length], message[4 + length :]


def _ticket(get: Get[Any]) -> bytes:
    return msgspec.json.encode((type(get).__name__, get))


# -- client -------------------------------------------------------------------------------------------------------


def listens(address: str, timeout_s: float = 0.2) -> bool:
    """Whether a process is there: a dead one's system refuses the connection at once."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError:
        return False
    return True


class Peer:
    """Another process, by address. Connects when first used; safe to use from several threads."""

    def __init__(self, address: str, token: str, meter: Meter | None = None, tls: Tls | None = None) -> None:
        if tls is None and not is_loopback(address.rpartition(":")[0]):
            raise Refused(
                f"speaking to {address} without TLS would show the token to the network; "
                "pass --tls-cert, --tls-key and --tls-ca"
            )
        self.address = address
        self._token = token
        self._meter = meter or Meter()
        self._tls = tls
        self._lock = threading.Lock()
        self._client: flight.FlightClient | None = None

    def call(
        self, call: Call[A], body: bytes = b"", *, category: str = "control", timeout_s: float = 30.0
    ) -> Reply[A]:
        message, client = _pack(msgspec.json.encode(call), body), self._connected()
        try:
            results = list(client.do_action(flight.Action(type(call).__name__, message), self._options(timeout_s)))
        except pa.ArrowInvalid:
            if client is self._client:
                raise
            raise flight.FlightUnavailableError(f"{self.address}: the connection was closed meanwhile") from None
        answer = b"".join(r.body.to_pybytes() for r in results)
        self._meter.add(category, len(message) + len(answer))
        return _opened(type(call), answer)

    def get(self, get: Get[A], *, category: str = "data", timeout_s: float = 30.0) -> tuple[Reply[A], pa.Table]:
        ticket = _ticket(get)
        reader = self._connected().do_get(flight.Ticket(ticket), self._options(timeout_s))
        table = reader.read_all()
        answer = (reader.schema.metadata or {}).get(HEADER_KEY, b"")
        self._meter.add(category, len(ticket) + table.nbytes + len(answer))
        return _opened(type(get), answer), table

    def stream(self, get: Get[Any]) -> Iterator[bytes]:
        """The metadata of each message of a long-lived stream; raises when the connection breaks."""
        for chunk in self._connected().do_get(flight.Ticket(_ticket(get)), self._options(None)):
            message = chunk.app_metadata.to_pybytes() if chunk.app_metadata else b""
            self._meter.add("heartbeat", len(message))
            yield message

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _options(self, timeout_s: float | None) -> flight.FlightCallOptions:
        headers = [(_AUTHORIZATION.encode(), b"Bearer " + self._token.encode())]
        return flight.FlightCallOptions(timeout=timeout_s, headers=headers)

    def _connected(self) -> flight.FlightClient:
        with self._lock:
            if self._client is None:
                self._client = connect(self.address, self._tls)
            return self._client


def connect(address: str, tls: Tls | None) -> flight.FlightClient:
    # A reconnect must notice a restarted process within a heartbeat, not after gRPC's default back-off of minutes.
    options = [
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 2000),  # what an attempt may take: on a busy machine, more than 50 ms
        ("grpc.max_reconnect_backoff_ms", 500),
    ]
    if tls is None:
        return flight.FlightClient(f"grpc+tcp://{address}", generic_options=options)
    cert, key, ca = tls.read()
    return flight.FlightClient(
        f"grpc+tls://{address}", tls_root_certs=ca, cert_chain=cert, private_key=key, generic_options=options
    )


def is_refused(error: BaseException) -> bool:
    return isinstance(error, (flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError))


# -- server -------------------------------------------------------------------------------------------------------


class _Gate(flight.ServerMiddlewareFactory):
    """Turns away every call without the token, before any handler sees it."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}"

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> None:
        import hmac

        given = (headers.get(_AUTHORIZATION) or [""])[0]
        if not hmac.compare_digest(given.encode(), self._expected.encode()):
            raise flight.FlightUnauthenticatedError(
                "wrong or missing job token; pass the token that this host was given"
            )


Handler = Callable[[Any, bytes], Any]
"""Takes a call and its body. Returns the answer, or a ``Reply`` that refuses."""
Getter = Callable[[Any], flight.FlightDataStream]


class Service:
    """What a process answers to."""

    def __init__(
        self, calls: dict[type[Call[Any]], Handler] | None = None, gets: dict[type[Get[Any]], Getter] | None = None
    ) -> None:
        self.calls = {kind.__name__: (kind, handler) for kind, handler in (calls or {}).items()}
        self.gets = {kind.__name__: (kind, getter) for kind, getter in (gets or {}).items()}


class Server(flight.FlightServerBase):
    def __init__(self, listen: str, token: str, service: Service, tls: Tls | None = None) -> None:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise SetupError(f"cannot listen on {listen!r}: write HOST:PORT, such as 127.0.0.1:7001")
        if tls is None and not is_loopback(host):
            raise Refused(
                f"listening on {listen} without TLS would let the network in; pass --tls-cert, --tls-key and --tls-ca, "
                "or listen on 127.0.0.1"
            )
        _require_free(host, int(port))
        kwargs: dict[str, Any] = {"middleware": {"gate": _Gate(token)}}
        scheme = "grpc+tcp"
        if tls is not None:
            cert, key, ca = tls.read()
            kwargs |= {"tls_certificates": [(cert, key)], "verify_client": True, "root_certificates": ca}
            scheme = "grpc+tls"
        try:
            super().__init__(f"{scheme}://{listen}", **kwargs)
        except (OSError, pa.ArrowException) as error:
            raise SetupError(f"cannot listen on {listen}: {error}") from None
        self.address = f"{host}:{self.port}"
        self._service = service
        self._thread = threading.Thread(target=self.serve, name="flight", daemon=True)
        self._thread.start()

    def shutdown(self) -> None:
        """Returns when nothing of it is left. What is still ending could close the socket of this process's next server
        (Arrow 26: one time in thirty)."""
        super().shutdown()
        self._thread.join()

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        if action.type not in self._service.calls:
            raise flight.FlightServerError(f"unknown call {action.type!r}")
        kind, handler = self._service.calls[action.type]
        try:
            head, body = _unpack(action.body.to_pybytes())
            call = msgspec.json.decode(head, type=kind)
        except (ValueError, RecursionError) as error:
            raise flight.FlightServerError(f"malformed {action.type!r}: {error}") from None
        reply = _answered(action.type, lambda: handler(call, body))
        return [(reply if isinstance(reply, Reply) else Reply(reply)).encoded()]

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            name, encoded = msgspec.json.decode(ticket.ticket, type=tuple[str, msgspec.Raw])
            kind, getter = self._service.gets[name]
            request = msgspec.json.decode(encoded, type=kind)
        except (ValueError, KeyError, RecursionError) as error:
            raise flight.FlightServerError(f"malformed ticket: {error}") from None
        return _answered(name, lambda: getter(request))


def _answered(what: str, answer: Callable[[], T]) -> T:
    """Whoever asks is told that this process failed at it, always by the same class of error: Arrow would turn some of
    Python's into its own, which nobody expects of a connection."""
    try:
        return answer()
    except flight.FlightError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise flight.FlightServerError(f"{what} failed: {type(error).__name__}: {error}") from None


def _require_free(host: str, port: int) -> None:
    """gRPC would share a taken port with whoever has it, or fail with a page of its own logs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            probe.bind((host.strip("[]"), port))
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host}:{port}: the port is taken or not allowed ({error.strerror}); choose another"
            ) from None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def table_stream(table: pa.Table, answer: Any = None) -> flight.FlightDataStream:
    """A table with what describes it, as the answer to a get."""
    return _described(table, Reply(answer))


def refused_stream(reason: Refusal) -> flight.FlightDataStream:
    return _described(pa.table({}), refuse(reason))


def _described(table: pa.Table, reply: Reply[Any]) -> flight.FlightDataStream:
    metadata = {HEADER_KEY: reply.encoded()}
    cut = (table.schema.metadata or {}).get(cut_times.KEY)
    schema = table.schema.with_metadata(metadata if cut is None else {**metadata, cut_times.KEY: cut})
    return flight.RecordBatchStream(table.cast(schema) if table.num_columns else pa.table({}, schema=schema))
