"""The command line: parse, call, print. Exit codes are those of ``understudy.errors``."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from understudy import __version__, asking, virtual
from understudy.durations import seconds
from understudy.errors import DrillFailed, SetupError, UnderstudyError
from understudy.settings import check, check_master

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="High availability for PySpark streaming.",
)
console = Console()
errors = Console(stderr=True)

JobFile = Annotated[Path, typer.Argument(metavar="JOB.py", help="Python file that defines one us.Job.")]
Hosts = Annotated[int, typer.Option(help="Number of hosts.", min=1)]
State = Annotated[Path | None, typer.Option(help="State folder; default .understudy/<job>.")]
Master = Annotated[str, typer.Option(help="Spark master of each host: local[*] or local[N]; others are refused.")]
Conf = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Spark setting for each host; repeatable.")]
QueueMb = Annotated[int, typer.Option(help="Memory for queues per host, in MiB; more goes to disk.", min=1)]
Heartbeat = Annotated[str, typer.Option(help="Time between heartbeats.")]
Misses = Annotated[int, typer.Option(help="Missed heartbeats in a row that make a failure.", min=1)]
Roles = Annotated[
    Path | None, typer.Option(metavar="FILE.toml", help="Hosts and policies of units, instead of what the job says.")
]
TokenFile = Annotated[Path | None, typer.Option(help="File with the job token; else $UNDERSTUDY_TOKEN.")]
TlsCert = Annotated[str | None, typer.Option(help="PEM certificate of this process.")]
TlsKey = Annotated[str | None, typer.Option(help="PEM key of this process.")]
TlsCa = Annotated[str | None, typer.Option(help="PEM certificate of the authority that signed all of them.")]


def _settings(conf: list[str] | None) -> dict[str, str]:
    settings = {}
    for item in conf or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise SetupError(f"--conf {item!r}: write KEY=VALUE")
        settings[key] = value
    check(settings)
    return settings


def _seconds(text: str, option: str) -> float:
    try:
        return seconds(text, what=option)
    except ValueError as error:
        raise SetupError(str(error)) from None


def _roles(file: Path | None) -> dict[str, Any]:
    from understudy.roles import read

    return {} if file is None else read(file)


def _tls(cert: str | None, key: str | None, ca: str | None) -> Any:
    from understudy.runtime.wire import Tls

    given = [x for x in (cert, key, ca) if x]
    if not given:
        return None
    if cert is None or key is None or ca is None:
        raise SetupError("TLS needs all three of --tls-cert, --tls-key and --tls-ca")
    return Tls(cert, key, ca)


def _default_state(job_file: Path) -> Path:
    from understudy.job_files import load

    return Path(".understudy") / load(job_file).name


def interrupt_on_sigterm() -> None:
    """Let SIGTERM do what Ctrl-C does, so that it too leaves no process behind."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)


@app.command()
def run(
    job_file: JobFile,
    hosts: Hosts = 3,
    roles: Roles = None,
    state: State = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start over: forget state and outputs of earlier runs.")
    ] = False,
    duration: Annotated[str | None, typer.Option("--for", help="Stop by itself after this time.")] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Listen here for hosts started elsewhere.")
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    queue_mb: QueueMb = 256,
    heartbeat: Heartbeat = "500ms",
    misses: Misses = 5,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Run a job until Ctrl-C; running it again goes on where it stopped."""
    from understudy.live import View
    from understudy.runtime.session import LocalRun, RemoteRun

    interrupt_on_sigterm()
    check_master(master)
    settings = _settings(conf)
    folder = state or _default_state(job_file)
    common: dict[str, Any] = {
        "hosts": hosts,
        "fresh": fresh,
        "roles": _roles(roles),
        "heartbeat_s": _seconds(heartbeat, "--heartbeat"),
        "heartbeat_misses": misses,
    }
    session: Any
    if coordinator is None:
        session = LocalRun(
            job_file, folder, master=master, settings=settings, queue_bytes=queue_mb << 20, revive=True, **common
        )
    else:
        tls = _tls(tls_cert, tls_key, tls_ca)
        session = RemoteRun(job_file, folder, listen=coordinator, token=asking.token_in(token_file), tls=tls, **common)
    limit_s = _seconds(duration, "--for") if duration else None
    try:
        with View(session.coordinator, title=f"understudy: {session.coordinator.job.name}"):
            session.start()
            session.coordinator.wait_until_running()
            session.wait(limit_s)
    except KeyboardInterrupt:
        pass
    except BaseException:
        session.stop(drain=False)
        raise
    # A second Ctrl-C while the last checkpoint is taken ends at once; the job is then resumed as after a crash.
    try:
        console.print("stopping: letting epochs in flight finish, taking the last checkpoint ...")
        clean = session.stop()
    except KeyboardInterrupt:
        clean = session.stop(drain=False)
    console.print(f"stopped{'' if clean else ' without a last checkpoint'}; run it again to go on ({folder})")


@app.command()
def plan(
    job_file: JobFile,
    roles: Roles = None,
    state: State = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="F", help="Also write it here, as JSON.")] = None,
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Show what to expect of a job before it runs: operators, policies, what is kept, what a crash and safety cost."""
    from understudy import outlook
    from understudy.runtime.profile import FILE

    interrupt_on_sigterm()
    check_master(master)
    settings = {**FAST_START, **_settings(conf)}
    profile = (state or _default_state(job_file)) / FILE
    found = outlook.inspect(job_file, profile, roles=_roles(roles), master=master, settings=settings)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(outlook.to_dict(found), indent=2) + "\n")
    outlook.show(found, console)


@app.command()
def host(
    name: Annotated[str, typer.Option(help="Name of this host in the job.")],
    coordinator: Annotated[str, typer.Option(metavar="ADDRESS", help="Where the coordinator listens.")],
    listen: Annotated[str, typer.Option(metavar="ADDRESS", help="Where this host listens.")] = "127.0.0.1:0",
    advertise: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Where others reach it, if not there: behind NAT, or a proxy.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder for state and queues; default .understudy/host-<name>.")
    ] = None,
    master: Master = "local[*]",
    conf: Conf = None,
    queue_mb: QueueMb = 256,
    lazy_spark: Annotated[
        bool, typer.Option("--lazy-spark", help="Start Spark when a job first needs it, not at once.")
    ] = False,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Run one host, on the machine that it stands for, until the coordinator tells it to exit."""
    from understudy.core.monitoring import OWNER
    from understudy.runtime import logs
    from understudy.runtime.host import HostConfig, serve
    from understudy.runtime.spark_jvm import require_java

    check_master(master)
    settings = _settings(conf)
    if not lazy_spark:
        require_java()
    if advertise is not None and not re.fullmatch(r".+:[1-9]\d*", advertise):
        raise SetupError(f"--advertise {advertise}: write HOST:PORT, such as 10.0.0.1:7001")
    if name == OWNER:
        raise SetupError(f"--name {OWNER}: that is who watches all hosts; choose another name")
    logs.never_fail()
    serve(
        HostConfig(
            name=name,
            folder=(folder or Path(".understudy") / f"host-{name}").resolve(),
            coordinator=coordinator,
            token=asking.token_in(token_file),
            listen=listen,
            advertise=advertise,
            master=master,
            settings=settings,
            queue_bytes=queue_mb << 20,
            tls=_tls(tls_cert, tls_key, tls_ca),
            lazy_spark=lazy_spark,
        )
    )


@app.command()
def policy(
    job: Annotated[str, typer.Argument(help="The job: its file, or its name.")],
    unit: Annotated[str, typer.Argument(help="The unit, or a stage that is a unit of its own.")],
    words: Annotated[list[str], typer.Argument(help="The policy, such as: active-standby delivery=eager")],
    state: Annotated[Path | None, typer.Option(help="State folder of the job; default .understudy/JOB.")] = None,
    wait: Annotated[bool, typer.Option(help="Return when the policy counts, not when the change has begun.")] = True,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Change how a unit of a running job is protected; nothing is lost or repeated."""
    from understudy.runtime import messages

    default = _default_state(Path(job)) if job.endswith(".py") else Path(".understudy") / job
    folder, tls = state or default, _tls(tls_cert, tls_key, tls_ca)
    begun = asking.ask(folder, token_file, tls, messages.SwitchPolicy(unit, " ".join(words)))
    console.print(begun.text, markup=False, highlight=False)
    with console.status("getting ready") if wait else nullcontext():
        while wait and begun.turning:
            begun = asking.ask(folder, token_file, tls, messages.AwaitTurn(unit))
            if not begun.turning:
                console.print(begun.text, markup=False, highlight=False)


@app.command()
def status(
    state: Annotated[
        Path | None, typer.Option(help="State folder of the job; default the only one in .understudy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Show a running job: hosts, units, epochs, bytes."""
    from understudy import telling
    from understudy.core.policies import parse
    from understudy.runtime import messages

    answer = asking.ask(state or asking.only_state(), token_file, _tls(tls_cert, tls_key, tls_ca), messages.Status())
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    table = Table(title=f"job {answer['job']}", title_justify="left")
    for column in ("unit", "policy", "generation", "runs on", "standby", "monitor"):
        table.add_column(column)
    for name, unit in answer["units"].items():
        turn = f" -> {unit['turn']['policy']}" if unit.get("turn") else ""
        kept = answer["hosts"].get(unit["primary"], {}).get("checkpoints", {}).get(name, {})
        table.add_row(
            name,
            unit["policy"] + telling.punctuality(kept) + turn,
            str(unit["generation"]),
            unit["primary"] or "waiting",
            telling.standbys(unit, parse(unit["policy"])),
            unit["monitor"],
        )
    console.print(table)
    table = Table(title="hosts", title_justify="left")
    for column in ("host", "health", "memory", "queues", "stages"):
        table.add_column(column)
    for name, about in answer["hosts"].items():
        stages = ", ".join(
            f"{s} {d['role']} @{d.get('committed', d.get('checkpoint'))}" for s, d in about.get("stages", {}).items()
        )
        queues = about.get("queues", {}).get("memory", 0)
        memory = f"{about.get('rss', 0) / 2**20:.0f} MiB"
        table.add_row(name, telling.health(about["health"], time.time()), memory, f"{queues / 2**20:.1f} MiB", stages)
    console.print(table)
    console.print("bytes: " + ", ".join(f"{k} {v:,}" for k, v in answer["bytes"].items()), highlight=False)


@app.command()
def drill(
    job_file: JobFile,
    kill: Annotated[str, typer.Option(metavar="STAGE_OR_HOST", help="What to hit: a host, or the host of a stage.")],
    signal_name: Annotated[
        str, typer.Option("--signal", metavar="KILL|STOP", help="STOP continues after --pause.")
    ] = "KILL",
    after: Annotated[str, typer.Option(help="How long the job runs before.")] = "10s",
    pause: Annotated[str, typer.Option(help="How long a stopped host stays stopped.")] = "5s",
    hosts: Hosts = 3,
    roles: Roles = None,
    out: Annotated[Path, typer.Option(help="Folder for outputs, result.json and report.html; it is replaced.")] = Path(
        "out/drill"
    ),
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the result here.")] = None,
    conf: Conf = None,
    heartbeat: Heartbeat = "500ms",
    misses: Misses = 5,
) -> None:
    """Break a running job on purpose and prove what it cost. The job's real outputs are not touched."""
    if signal_name not in ("KILL", "STOP"):
        raise SetupError(f"--signal {signal_name}: use KILL or STOP")
    number = signal.SIGKILL if signal_name == "KILL" else signal.SIGSTOP
    result = _drill(
        job_file,
        out,
        kill=kill,
        number=number,
        after_s=_seconds(after, "--after"),
        pause_s=_seconds(pause, "--pause"),
        hosts=hosts,
        roles=_roles(roles),
        settings=_settings(conf),
        heartbeat_s=_seconds(heartbeat, "--heartbeat"),
        heartbeat_misses=misses,
    )
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(result, indent=2))
    if result["verdict"] not in ("precise", result["expected"]):  # what may lose rows need not
        raise DrillFailed(f"expected {result['expected']}, found {result['verdict']}; see {out}/report.html")


FAST_START = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=128m"
}
"""Short runs end before the JVM's optimising compiler has paid for itself. Without it the JVM sets 48 MB aside for
code, which a few hundred rehearsals fill, and then compiles nothing any more."""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for result.json and report.html; it is replaced.")] = Path(
        "out/demo"
    ),
) -> None:
    """Run the traffic example on three hosts, kill the host of its stateful stage, and show what happens."""
    job_file = Path(__file__).parent / "examples" / "traffic.py"
    result = _drill(
        job_file, out, kill="speeds", number=signal.SIGKILL, after_s=5.0, pause_s=5.0, hosts=3, settings=FAST_START
    )
    if result["verdict"] != "precise":
        raise DrillFailed(f"expected precise, found {result['verdict']}; see {out}/report.html")


def _drill(job_file: Path, out: Path, **arguments: Any) -> dict[str, Any]:
    from understudy.drill import sentence, simple
    from understudy.live import View

    interrupt_on_sigterm()
    console.print(f"starting {arguments['hosts']} hosts ...")
    result = simple(job_file, out, around=lambda c: View(c, title=f"understudy drill: {c.job.name}"), **arguments)
    good = result["verdict"] in ("precise", result["expected"]) and not result["disorder"]
    console.print()
    console.print(sentence(result), style="bold green" if good else "bold red", highlight=False)
    ratio = result["ha_ratio"]
    if ratio is not None:
        spent = ", ".join(f"{k} {v:,}" for k, v in result["bytes"].items())
        console.print(f"protection cost {ratio:.1%} of the data's bytes ({spent})", highlight=False)
    console.print(f"report: {out}/report.html   result: {out}/result.json")
    return result


app.command()(virtual.fuzz)
app.command()(virtual.simulate)
app.add_typer(virtual.lab, name="lab")


@app.command()
def prepare() -> None:
    """Record the classes that Spark loads, once: hosts then start in half the time."""
    from understudy.runtime import class_archive
    from understudy.runtime.spark_jvm import require_java

    require_java()
    if class_archive.archive().is_file():
        console.print("prepared already")
        return
    with console.status("running a few queries and recording what Spark loads (half a minute) ..."):
        try:
            file = class_archive.record()
        except (OSError, RuntimeError) as error:
            raise SetupError(f"{error}; everything works without, hosts only take longer to start") from None
    console.print(f"prepared: {file} ({file.stat().st_size >> 20} MiB)", highlight=False, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    code = _main()
    sys.stdout.flush()
    sys.stderr.flush()
    if "pyarrow.flight" in sys.modules:
        # Python's own end would pull the floor from under gRPC's threads, which now and then crash on it.
        os._exit(code)
    sys.exit(code)


def _main() -> int:
    try:
        app(standalone_mode=False)
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except UnderstudyError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return error.exit_code
    except Exception as error:
        if type(error).__module__.startswith("click") or hasattr(error, "format_message"):
            errors.print(f"[bold red]error:[/] {escape(error.format_message())}", highlight=False)  # type: ignore[attr-defined]
            return 2
        traceback.print_exc()
        return 1
    return 0
