"""How processes talk: Arrow Flight with a token on every call.

A *call* is a Flight action: a JSON header and an optional binary body each way. An *epoch* travels as a Flight
stream whose schema metadata carries its header. Refusals that the protocol expects (a stale generation, a stream
that has moved) come back as ``Reply.refused``, not as exceptions; anything else raises ``flight.FlightError``.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Any

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when gRPC is loaded; strangers at the door are no news

import pyarrow as pa
import pyarrow.flight as flight

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
    POLICY = "policy"
    """The user's job, or the policy asked for, cannot be; the text says why."""


@dataclass(frozen=True)
class Reply:
    header: dict[str, Any]
    body: bytes = b""

    @property
    def refused(self) -> Refusal | None:
        """The reason of an expected refusal. Raises ValueError for one that there is not."""
        reason = self.header.get("refused")
        return None if reason is None else Refusal(reason)


def refuse(reason: Refusal, text: str = "") -> Reply:
    return Reply({"refused": reason, "text": text})


def _pack(header: dict[str, Any], body: bytes) -> bytes:
    head = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<I", len(head)) + head + body


def _unpack(message: bytes) -> tuple[dict[str, Any], bytes]:
    if len(message) < 4:
        raise ValueError("message too short")
    (length,) = struct.unpack_from("<I", message)
    if 4 + length > len(message):
        raise ValueError("header is longer than the message")
    header = json.loads(message[4 : 4 + length])
    if not isinstance(header, dict):
        raise ValueError("message header is not an object")
    return header, message[4 + length :]


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
        self,
        action: str,
        header: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        category: str = "control",
        timeout_s: float = 30.0,
    ) -> Reply:
        message, client = _pack(header or {}, body), self._connected()
        try:
            results = list(client.do_action(flight.Action(action, message), self._options(timeout_s)))
        except pa.ArrowInvalid:
            if client is self._client:
                raise
            raise flight.FlightUnavailableError(f"{self.address}: the connection was closed meanwhile") from None
        answer = b"".join(r.body.to_pybytes() for r in results)
        self._meter.add(category, len(message) + len(answer))
        return Reply(*_unpack(answer))

    def get(
        self, request: dict[str, Any], *, category: str = "data", timeout_s: float = 30.0
    ) -> tuple[Reply, pa.Table]:
        ticket = json.dumps(request, separators=(",", ":")).encode()
        reader = self._connected().do_get(flight.Ticket(ticket), self._options(timeout_s))
        table = reader.read_all()
        header = json.loads(reader.schema.metadata[HEADER_KEY])
        self._meter.add(category, len(ticket) + table.nbytes + len(reader.schema.metadata[HEADER_KEY]))
        return Reply(header), table

    def stream(self, request: dict[str, Any]) -> Iterator[bytes]:
        """The metadata of each message of a long-lived stream; raises when the connection breaks."""
        ticket = flight.Ticket(json.dumps(request).encode())
        for chunk in self._connected().do_get(ticket, self._options(None)):
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


Handler = Callable[[dict[str, Any], bytes], Reply | dict[str, Any]]
Getter = Callable[[dict[str, Any]], flight.FlightDataStream]


@dataclass
class Service:
    """What a process answers to: ``calls`` by action name, ``gets`` by the request's ``get`` field."""

    calls: dict[str, Handler] = field(default_factory=dict)
    gets: dict[str, Getter] = field(default_factory=dict)


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

    def do_action(self, context: Any, action: flight.Action) -> list[bytes]:
        handler = self._service.calls.get(action.type)
        if handler is None:
            raise flight.FlightServerError(f"unknown call {action.type!r}")
        try:
            header, body = _unpack(action.body.to_pybytes())
        except ValueError as error:
            raise flight.FlightServerError(f"malformed {action.type!r}: {error}") from None
        try:
            reply = handler(header, body)
        except (KeyError, TypeError) as error:
            raise flight.FlightServerError(f"malformed {action.type!r}: {error!r}") from error
        if isinstance(reply, dict):
            reply = Reply(reply)
        return [_pack(reply.header, reply.body)]

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            request = json.loads(ticket.ticket)
            getter = self._service.gets[request["get"]]
        except (ValueError, KeyError, TypeError):
            raise flight.FlightServerError("malformed ticket") from None
        return getter(request)


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


def epoch_stream(table: pa.Table, header: dict[str, Any]) -> flight.FlightDataStream:
    """A table with its header, as the answer to a get."""
    schema = table.schema.with_metadata({HEADER_KEY: json.dumps(header, separators=(",", ":")).encode()})
    return flight.RecordBatchStream(table.cast(schema) if table.num_columns else pa.table({}, schema=schema))


EMPTY = pa.table({})
