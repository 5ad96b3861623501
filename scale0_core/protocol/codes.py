"""The error codes of the Scale0 protocol: HTTP's numbers, with the meaning they have here."""

from __future__ import annotations

from enum import IntEnum

import attrs


class Code(IntEnum):
    """The codes by name."""

    DONE = 200
    OTHER_BROKER = 301
    MALFORMED = 400
    UNAUTHENTICATED = 401
    FORBIDDEN = 403
    NO_SERVICE = 404
    HEARTBEATS_MISSED = 408
    IDENTITY_IN_USE = 409
    CANCELLED = 410
    CLOCK_OFF = 412
    TOO_LARGE = 413
    CONFIG_TYPE = 415
    CONFIG_OUTDATED = 426
    TOO_MANY = 429
    SILENCED = 444
    FAILURE = 500
    UNKNOWN_COMMAND = 501
    UNAVAILABLE = 503
    DEADLINE = 504


@attrs.frozen
class CodeInfo:
    """What a code means, in which messages it is sent, and what whoever gets it should do."""

    code: Code
    messages: tuple[str, ...]
    meaning: str
    remedy: str

    @property
    def name(self) -> str:
        """The code's name in lower case."""
        return self.code.name.lower()


_ERROR, _LEAVE, _REPLY = "ERROR", "DISCONNECTERROR", "MANAGEMENTREP"

CODES: dict[Code, CodeInfo] = {
    info.code: info
    for info in (
        CodeInfo(Code.DONE, (_REPLY,), "done", "nothing: the command was carried out"),
        CodeInfo(
            Code.OTHER_BROKER,
            (_ERROR, "CHANGEBROKER"),
            "go to another broker",
            "connect to the first broker in the list that came with it; clients of Scale0 do so by themselves",
        ),
        CodeInfo(
            Code.MALFORMED,
            (_LEAVE,),
            "malformed message",
            "look at what was sent: a header such as S0C01, a command, options as one JSON object, the body",
        ),
        CodeInfo(
            Code.UNAUTHENTICATED,
            (_REPLY, _LEAVE),
            "no credentials, or wrong ones",
            "give auth_id and auth_password, or the client's key, as the broker knows them",
        ),
        CodeInfo(
            Code.FORBIDDEN,
            (_REPLY, _LEAVE),
            "not allowed",
            "ask an administrator for the role that this command needs",
        ),
        CodeInfo(
            Code.NO_SERVICE,
            (_ERROR,),
            "no such service known here",
            "check the spelling of the service, and whether a worker or a plugin offers it",
        ),
        CodeInfo(
            Code.HEARTBEATS_MISSED,
            (_LEAVE,),
            "heartbeats missed",
            "connect again with CHECKCONFIG; when it comes back, the worker is too busy or the interval is too short; "
            "as the code of a client's error: the time of the call is over, so give it more, or see what it waits for",
        ),
        CodeInfo(
            Code.IDENTITY_IN_USE,
            (_LEAVE,),
            "identity in use by another connection",
            "give each client and worker an identity of its own; after a crash, wait until the old one has expired",
        ),
        CodeInfo(
            Code.CANCELLED,
            ("TASKREPLY",),
            "task cancelled",
            "nothing: a worker answers a CANCEL with it, which frees its slot; "
            "as the code of a client's error: the call was cancelled",
        ),
        CodeInfo(
            Code.CLOCK_OFF,
            (_LEAVE,),
            "clock too far off",
            "set the clock of that machine, best by NTP, and connect again",
        ),
        CodeInfo(Code.TOO_LARGE, (_ERROR,), "too large", "send less in one message, or raise the limit in broker.toml"),
        CodeInfo(
            Code.CONFIG_TYPE,
            (_ERROR,),
            "config_type not offered",
            "ask for one of the types listed in the message, or install the plugin that offers this one",
        ),
        CodeInfo(
            Code.CONFIG_OUTDATED,
            ("FORCENEGOTIATE", _LEAVE),
            "config version not current",
            "start again with CHECKCONFIG; clients of Scale0 do so by themselves",
        ),
        CodeInfo(
            Code.TOO_MANY,
            (_ERROR,),
            "too many open tasks",
            "wait for answers before sending more, or add workers",
        ),
        CodeInfo(
            Code.SILENCED,
            (),
            "client is on error_clients: it gets no answer at all",
            "take its identity off error_clients in the configuration",
        ),
        CodeInfo(
            Code.FAILURE,
            (_ERROR,),
            "plugin or broker failure",
            "look into the broker's log for the service, then: scale0 plugins doctor",
        ),
        CodeInfo(
            Code.UNKNOWN_COMMAND,
            (_ERROR,),
            "unknown command",
            "check the spelling of the command, and whether both sides speak the same version of the protocol",
        ),
        CodeInfo(
            Code.UNAVAILABLE,
            (_ERROR,),
            "joining, no config service, or no broker to offer",
            "try again in a moment; after NEEDBROKER do not retry, there is nobody else",
        ),
        CodeInfo(
            Code.DEADLINE,
            (_ERROR,),
            "task deadline passed",
            "give the task more time, or look at why its workers are slow",
        ),
    )
}
"""All codes, with their explanations."""
