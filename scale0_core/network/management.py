"""Management requests: one table of commands, who may use each, and the check of who is asking.

The command word is looked at before anything else of a request, so that the check is quick. A password is compared by a
job, since that takes its time on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from scale0_core.api import Effect, Job, JobResult, Send, printable
from scale0_core.config.network import ROLES, User
from scale0_core.network.passwords import hash_password, password_matches
from scale0_core.network.workers import ClientKey
from scale0_core.protocol import messages as wire
from scale0_core.protocol import options as read
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import MalformedError, Message

LOCK_AFTER = 5
LOCK_SECONDS = 60.0
MOST_CHECKS = 16
"""Passwords that are compared at once; more would be a way to keep the machine busy."""

MOST_REMEMBERED = 10_000
"""Names whose failures are remembered; whoever asks chooses them, so there is a bound."""

Arguments = Mapping[str, Any]
Answer = tuple[Any, list[Effect]]
"""What a command answers, as JSON, and what else is to be done."""


@attrs.frozen
class ManagementCommand:
    """One command: its name, the role it needs, what it does."""

    name: str
    role: str
    help: str
    run: Callable[[Arguments, float], Answer]


@attrs.frozen
class Pending:
    """A request whose password is being compared."""

    key: ClientKey
    message: Message
    user: str
    command: ManagementCommand
    silent: bool


@attrs.frozen
class Deferred:
    """An answer that comes when a job has ended; ``then`` makes it from the job's value."""

    job: Job
    then: Callable[[Any], Answer]


@attrs.frozen
class DeferredReply:
    """A request whose job is under way."""

    key: ClientKey
    message: Message
    then: Callable[[Any], Answer]


class ManagementError(Exception):
    """A command that cannot be carried out."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Management:
    """Checks and carries out management requests."""

    def __init__(self, users: Iterable[User], commands: Iterable[ManagementCommand]) -> None:
        self.commands = {command.name: command for command in commands}
        self.set_users(users)
        self._failures: dict[str, list[float]] = {}
        self._checking = 0

    def set_users(self, users: Iterable[User]) -> None:
        """Replace who may ask."""
        self._users = {user.name: user for user in users}

    def request(self, key: ClientKey, message: Message, now: float, *, trusted: bool, silent: bool) -> list[Effect]:
        """Take a request. ``trusted`` needs no password; ``silent`` takes only enable and tells of no failure.

        Whoever is trusted may also ask for the state while all others meet silence.
        """
        try:
            answered = () if not silent else ("enable", "state") if trusted else ("enable",)
            command = self._command(message, answered)
            if trusted:
                return self._run(key, message, command, now)
            user = read.text(message.options, "auth_id", longest=255)
            password = read.text(message.options, "auth_password", longest=1024)
            if self._locked(user, now) or self._checking >= MOST_CHECKS:
                raise ManagementError(Code.TOO_MANY, "too many attempts; try again in a minute")
        except (ManagementError, MalformedError) as error:
            return [] if silent else [_reply(key, message, error.code, error.reason)]
        known = self._users.get(user)
        self._checking += 1
        pending = Pending(key, message, user, command, silent)
        check = (password, known.password if known else "")
        return [Job(("password", user), _matches, check, pending)]

    def checked(self, pending: Pending, matches: bool, now: float) -> list[Effect]:
        """Go on with a request whose password has been compared."""
        self._checking -= 1
        user = self._users.get(pending.user)
        if not matches or user is None:
            self._remember_failure(pending.user, now)
            code, reason = Code.UNAUTHENTICATED, "no such user, or not the password"
        elif ROLES.index(user.role) < ROLES.index(pending.command.role):
            code, reason = Code.FORBIDDEN, f"{pending.command.name} needs the role {pending.command.role}"
        else:
            self._failures.pop(pending.user, None)
            return self._run(pending.key, pending.message, pending.command, now)
        return [] if pending.silent else [_reply(pending.key, pending.message, code, reason)]

    def too_late(self) -> list[Effect]:
        """Let go of a request whose password was compared while the broker was disabled."""
        self._checking -= 1
        return []

    def _remember_failure(self, user: str, now: float) -> None:
        """Names are chosen by whoever asks: those that do not exist make room for others."""
        if user not in self._failures and len(self._failures) >= MOST_REMEMBERED:
            strangers = (name for name in self._failures if name not in self._users)
            self._failures.pop(next(strangers, ""), None)
        self._failures.setdefault(user, []).append(now)

    def _command(self, message: Message, answered: tuple[str, ...]) -> ManagementCommand:
        """Return the command that is asked for, if it is among those that are ``answered``; empty answers all."""
        name = read.text(message.options, "command", longest=64)
        command = self.commands.get(name)
        if command is None or (answered and name not in answered):
            raise ManagementError(
                Code.UNKNOWN_COMMAND, f"there is no command {name!r}: {', '.join(sorted(self.commands))}"
            )
        return command

    def _run(self, key: ClientKey, message: Message, command: ManagementCommand, now: float) -> list[Effect]:
        arguments = message.options.get("args", {})
        try:
            if not isinstance(arguments, dict):
                raise ManagementError(Code.MALFORMED, "args is an object")
            result, effects = command.run(arguments, now)
        except ManagementError as error:
            return [_reply(key, message, error.code, error.reason)]
        if isinstance(result, Deferred):
            return [attrs.evolve(result.job, token=DeferredReply(key, message, result.then)), *effects]
        return [_reply(key, message, Code.DONE, "done", result), *effects]

    def ended(self, reply: DeferredReply, result: JobResult) -> list[Effect]:
        """Answer a request whose job has ended."""
        if result.error is not None:
            return [_reply(reply.key, reply.message, Code.FAILURE, printable(result.error, 2000))]
        told, effects = reply.then(result.value)
        return [_reply(reply.key, reply.message, Code.DONE, "done", told), *effects]

    def _locked(self, user: str, now: float) -> bool:
        recent = [moment for moment in self._failures.get(user, ()) if now - moment < LOCK_SECONDS]
        if recent:
            self._failures[user] = recent
        else:
            self._failures.pop(user, None)
        return len(recent) >= LOCK_AFTER


def _matches(check: tuple[str, str]) -> bool:
    password, kept = check
    if not kept:
        hash_password(password, b"no such user")  # so that the answer takes as long as for one that exists
        return False
    return password_matches(password, kept)


def _reply(key: ClientKey, message: Message, code: Code, reason: str, result: object = None) -> Send:
    options = wire.write_options(code=int(code), message=reason)
    body = json.dumps(result, default=str).encode()
    return (key[0], (*message.envelope, message.header, wire.MANAGEMENTREP, options, body))
