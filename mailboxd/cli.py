"""The command line. Bodies import what they need, so that `mailboxd --help` comes at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mailboxd.admin import admin_app
from mailboxd.failures import explain
from mailboxd.migrate import migrate_app
from mailboxd.options import ConfigFile, DataDir, Json, directory
from mailboxd.terminal import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, CommandError, complain, pairs, print_result, table

app = typer.Typer(
    name="mailboxd",
    help=(
        "Durable mailboxes for end-to-end-encrypted apps.\n\n"
        "Start with [bold]mailboxd up[/bold]: the whole server on this machine. In production run [bold]gateway[/bold] "
        "and [bold]worker[/bold] against your own PostgreSQL and Redis; see docs/operations.md."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(migrate_app, name="migrate")
app.add_typer(admin_app, name="admin")


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"mailboxd {version('mailboxd')}")
        raise typer.Exit


@app.callback()
def every_command(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the release and end.")
    ] = False,
) -> None:
    """A command's own words are what a person wants to read: of its libraries, errors only."""
    from runtime import logs

    logs.configure("mailboxd", level="error")


Url = Annotated[str | None, typer.Option("--url", help="The server; default http://127.0.0.1:8080.")]
UrlDataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", parser=directory, help="Use the server that `mailboxd up` runs there."),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="DIR",
        parser=directory,
        help="Where the device is kept; default in the user's state directory.",
    ),
]
Invite = Annotated[str | None, typer.Option("--invite", help="For the first call, where registration needs one.")]
ParentPid = Annotated[int | None, typer.Option("--parent-pid", hidden=True)]
LogName = Annotated[str | None, typer.Option("--log-name", hidden=True)]


@app.command()
def up(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            parser=directory,
            help="Where everything is kept; made when missing. Default .mailboxd",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="The address to listen on; 0.0.0.0 for the whole network.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="HTTP and WebSocket. 0 takes a free one.")
    ] = 8080,
    ops_port: Annotated[
        int, typer.Option("--ops-port", min=0, max=65_535, help="Health and metrics, on 127.0.0.1. 0 takes free ones.")
    ] = 9090,
    gateways: Annotated[
        int, typer.Option("--gateways", min=1, max=64, help="How many gateways, on the port, the port + 1, …")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Run the whole server here: PostgreSQL, Valkey, gateways and a worker. Ctrl-C stops all of it.

    The database and Valkey come with the installation and keep their data in DIR. Registration is open in a directory
    that this command creates; change that with `mailboxd admin policy set registration=closed --data-dir DIR`.
    """
    import asyncio

    from mailboxd.embedded import default_data_dir
    from mailboxd.up import run_up
    from mailboxd.up_plan import UpOptions, show_report

    options = UpOptions((data_dir or default_data_dir()).absolute(), host, port, ops_port, gateways)
    raise typer.Exit(asyncio.run(run_up(options, os.environ, lambda report: show_report(report, as_json=as_json))))


@app.command()
def gateway(
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    listen: Annotated[str | None, typer.Option("--listen", metavar="HOST:PORT", help="Where devices connect.")] = None,
    ops_listen: Annotated[
        str | None, typer.Option("--ops-listen", metavar="HOST:PORT", help="Health and metrics.")
    ] = None,
    parent_pid: ParentPid = None,
    log_name: LogName = None,
) -> None:
    """Run one gateway: the door for devices, HTTP and WebSocket on one port. SIGTERM drains it.

    Needs a migrated database (`mailboxd migrate apply`) and the instance's keyring (`mailboxd init`).
    """
    from mailboxd.processes import run_gateway

    raise typer.Exit(
        run_gateway(
            data_dir,
            config_file,
            {"listen": listen, "ops_listen": ops_listen},
            parent_pid=parent_pid,
            log_name=log_name,
        )
    )


@app.command()
def worker(
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    ops_listen: Annotated[
        str | None, typer.Option("--ops-listen", metavar="HOST:PORT", help="Health and metrics.")
    ] = None,
    parent_pid: ParentPid = None,
    log_name: LogName = None,
) -> None:
    """Run one worker: wake pushes and cleanup. SIGTERM lets it finish the jobs in hand."""
    from mailboxd.processes import run_worker

    raise typer.Exit(
        run_worker(data_dir, config_file, {"ops_listen": ops_listen}, parent_pid=parent_pid, log_name=log_name)
    )


@app.command()
def init(
    data_dir: DataDir = None,
    config_file: ConfigFile = None,
    registration: Annotated[
        str, typer.Option("--registration", metavar="MODE", help="For a new instance: open, invite or closed.")
    ] = "closed",
    as_json: Json = False,
) -> None:
    """Make the keyring and the instance, once. Run it after `mailboxd migrate apply`; what is there stays.

    The keyring (keyring.json in the secrets directory) must be the same on every host, readable by its owner only, and
    backed up apart from the database: without it all cursors, tokens and push routes are lost.
    """
    import asyncio

    from mailboxd.init import initialise
    from mailboxd.settings import load_settings
    from protocol.ids import to_text
    from runtime.config import ProcessConfig
    from store.policy_rules import Policy

    config = load_settings(ProcessConfig, data_dir=data_dir, config_file=config_file)
    policy = Policy().changed([f"registration={registration}"])
    done = asyncio.run(initialise(config.postgres_dsn, config.secrets_dir, policy))
    result = {
        "instance_id": to_text(done.instance.instance_id),
        "instance_created": done.instance.created,
        "keyring_created": done.keyring_created,
        "policy_version": done.instance.policy_version,
        "secrets_dir": str(config.secrets_dir),
    }
    print_result(result, as_json=as_json, lines=pairs(result))


@app.command()
def config(data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False) -> None:
    """Show the settings in effect, secrets masked, or every mistake in them.

    Settings come from the environment (MAILBOXD_POSTGRES_DSN, …) and from the TOML file; docs/configuration.md has all.
    """
    from mailboxd.settings import load_all_settings

    shown = load_all_settings(data_dir=data_dir, config_file=config_file)
    lines = [line for part, values in shown.items() for line in ("", f"[{part}]", *pairs(values))][1:]
    print_result(shown, as_json=as_json, lines=lines)


@app.command()
def send(
    to: Annotated[
        str, typer.Option("--to", metavar="ADDRESS", help="As `mailboxd listen` prints it on the other side.")
    ],
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: standard input.")] = None,
    url: Url = None,
    data_dir: UrlDataDir = None,
    state: State = None,
    invite: Invite = None,
    ttl_s: Annotated[int | None, typer.Option("--ttl-s", help="How long it may wait to be fetched.")] = None,
    as_json: Json = False,
) -> None:
    """Seal a file for one device and leave it in its mailbox, whether that device is online or not."""
    import asyncio

    from mailboxd.client_state import server_url, state_directory
    from mailboxd.send import send_file
    from mailboxd.transfer import Address

    try:
        address = Address.from_text(to)
    except ValueError as error:
        raise CommandError(str(error)) from None
    server = server_url(url, data_dir)
    directory = state_directory(state, server, "send")
    try:
        with file.open("rb") if file is not None else sys.stdin.buffer as source:
            sent = asyncio.run(send_file(source, address, server, directory, invite=invite, ttl_s=ttl_s))
    except OSError as error:
        raise CommandError(f"{file or 'standard input'}: {error.strerror}") from None
    result = {"transfer": sent.transfer.hex(), "bytes": sent.bytes, "envelopes": sent.parts}
    parts = "1 sealed envelope is" if sent.parts == 1 else f"{sent.parts} sealed envelopes are"
    line = f"{sent.bytes} bytes in {parts} in the mailbox"
    print_result(result, as_json=as_json, lines=[line])


@app.command()
def listen(
    url: Url = None,
    data_dir: UrlDataDir = None,
    state: State = None,
    invite: Invite = None,
    address_only: Annotated[
        bool, typer.Option("--address", help="Print this device's address, registering it if need be, and end.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on receiving; needs --into.")] = False,
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DIR", help="Write each file there, instead of to standard output.")
    ] = None,
    kept_bytes_max: Annotated[
        int, typer.Option("--kept-bytes-max", min=65_536, help="How much may be kept of files that are not whole yet.")
    ] = 4 * 1024**3,
    drop_incomplete: Annotated[
        bool, typer.Option("--drop-incomplete", help="Drop what is kept of files that are not whole, then go on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Receive a file that `mailboxd send` sent here and write it to standard output.

    The first call registers a device of its own. Give its address, printed on standard error, to whoever shall send.
    """
    import asyncio

    from mailboxd.client_state import server_url, state_directory
    from mailboxd.listen import receive, register

    if follow and into is None:
        raise CommandError("--follow needs --into DIR")
    if into is not None and not into.is_dir():
        raise CommandError(f"{into} is no directory")
    server = server_url(url, data_dir)
    directory = state_directory(state, server, "listen")
    account, address = asyncio.run(register(server, directory, invite=invite))
    if address_only:
        print_result({"address": str(address)}, as_json=as_json, lines=[str(address)])
        return
    complain([f"listening as {address}"])
    asyncio.run(
        receive(
            server,
            directory,
            account,
            into=into,
            follow=follow,
            kept_bytes_max=kept_bytes_max,
            drop_incomplete=drop_incomplete,
        )
    )


@app.command()
def doctor(data_dir: DataDir = None, config_file: ConfigFile = None, as_json: Json = False) -> None:
    """Check this machine, the settings, PostgreSQL and Redis, and say what to do. Exit code 1 when a check failed."""
    import asyncio

    from mailboxd.doctor import examine
    from mailboxd.findings import Verdict

    findings = asyncio.run(examine(data_dir, config_file))
    healthy = all(finding.verdict is not Verdict.FAILED for finding in findings)
    document = {"healthy": healthy, "findings": [finding._asdict() for finding in findings]}
    print_result(document, as_json=as_json, lines=table(("check", "verdict", "found"), findings))
    if not healthy:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def demo(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="What to send. Default: the README and the licence."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            parser=directory,
            help="Where everything is kept; made when missing. Default .mailboxd",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Play a real exchange: two devices, sealed files, a wake push, lost connections. Exit code 0 if all came true.

    Starts PostgreSQL, Valkey, a gateway and a worker in DIR for it and stops them afterwards. With --json every line is
    a JSON object and the last one is the result.
    """
    from mailboxd.demo.run import run_demo
    from mailboxd.embedded import default_data_dir

    raise typer.Exit(run_demo((data_dir or default_data_dir()).absolute(), files or (), os.environ, as_json=as_json))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. An expected failure is one clear line for every mistake."""
    try:
        app(list(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_OK
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        told = explain(error)
        if told is None:
            raise  # a bug: its traceback is what a report needs
        complain(told.lines)
        return told.exit_code
    return EXIT_OK
