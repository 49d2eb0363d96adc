"""The tables about messages: settings of destinations, states, and the rules' own page."""

from __future__ import annotations

from ranonce import messages
from ranonce.delivery import spec
from ranonce.messages import STATES, Route
from ranonce.timefmt import format_duration
from tools.tables import same, table

#: The settings that every destination has: what each is for, and its default where the code's own does not say it.
DESTINATION_KEY_HELP = {
    "type": "What it is: " + ", ".join(f"`{kind}`" for kind in spec.TYPES) + ".",
    "dedupes": 'So long it takes a second message of the same key for the first: `"24h"`, `true` (for ever), `false`.',
    "max_attempts": "Failures before a message is dead, or unsure where it may have been received.",
    "concurrency": "So many are sent at the same time by one deliverer.",
    "rate": 'So many a second by all deliverers together, or text like `"100/h"`.',
    "timeout": "For one message, from its first byte to its answer: 0.1 s to 1 h.",
    "late_after": "A message that waits longer is late: `ranonce probe` names it.",
    "prefix": "Put before each key on its way, as `prefix/KEY`, where two ledgers share a destination.",
}
DESTINATION_KEY_DEFAULTS = {"type": "must be given", "dedupes": "by its type", "rate": "no limit", "prefix": "none"}
#: The settings of each kind: what each is for, and its default.
CA = ("A file of PEM certificates that is trusted instead of the system's. Relative to this file.", "the system's")
KIND_KEY_HELP: dict[str, dict[str, tuple[str, str]]] = {
    "http": {
        "url": ("Where messages go: `https://` or `http://`. The whole of it may be `${NAME}`.", "must be given"),
        "method": ("`POST`, `PUT` or `PATCH`.", "`POST`"),
        "headers": ("A table of further headers. Those that hold a secret take it from `${NAME}`.", "none"),
        "secret": (
            "`${NAME}` of a signing secret (`whsec_…`); while it is replaced two, with a blank between.",
            "none",
        ),
        "key_header": ("The header that the key stands in.", "`Idempotency-Key`"),
        "expect": ("What the answer's JSON must say: a table of JSON Pointers and values.", "nothing: 2xx is enough"),
        "ca": CA,
    },
    "smtp": {
        "host": ("The mail server.", "must be given"),
        "port": ("Its port.", "587 (`starttls`), 465 (`tls`), 25 (`none`)"),
        "tls": (
            "`starttls`: encrypted after a plain beginning, or nothing is sent; `tls`: encrypted from the first byte; "
            "`none`.",
            "`starttls` with a login, else `none`",
        ),
        "ca": CA,
        "user": ("The login; it needs a password.", "no login"),
        "password": ("`${NAME}` of its password.", "no login"),
        "from": ("Who sends: one address, with a name or without.", "must be given"),
        "to": ("Who gets it where the message does not say.", "none"),
        "subject": (
            "Its subject where the message does not say; `{job}` and `{window}` are replaced.",
            "`{job} {window}`",
        ),
    },
    "nats": {
        "url": ("One server or more, with commas between: `nats://HOST:PORT`, `tls://HOST:PORT`.", "must be given"),
        "subject": (
            "Where it is published; `{job}` and `{destination}` are replaced, a dot in them by `_`.",
            "must be given",
        ),
        "stream": ("The stream that must take it.", "whichever has the subject"),
        "window": ("So many are on their way at the same time.", "256"),
        "creds": ("A credentials file.", "none"),
        "user": ("The login.", "none"),
        "password": ("`${NAME}` of its password.", "none"),
        "token": ("`${NAME}` of a token.", "none"),
        "ca": ("A file of PEM certificates that is trusted; with it the connection is encrypted.", "none"),
    },
    "command": {
        "command": (
            "The program and its arguments, as a list. `{key}`, `{window}`, `{job}` and `{destination}` are replaced.",
            "must be given",
        ),
        "retry_exit_codes": ("Exit codes that mean: not received, try again.", "75"),
        "refuse_exit_codes": ("Exit codes that mean: never.", "64, 65, 78"),
    },
    "sql": {
        "url": ("`sqlite:////PATH` or `postgresql://USER@HOST/DATABASE`.", "must be given"),
        "table": ("The table, with its schema if need be. Taken as it is written.", "`ranonce_inbox`"),
    },
    "github": {
        "repo": ("`OWNER/NAME`, where the message does not name another.", "none"),
        "token": ("`${NAME}` of a token that may read and write the issues.", "must be given"),
        "api": ("The address of the interface.", "`https://api.github.com`"),
        "ca": CA,
    },
}
#: What each state of a message means, and who acts.
MESSAGE_STATES = {
    "pending": ("waits for a deliverer, for its next try, or for a destination that is closed", "`ranonce deliver`"),
    "sending": ("a deliverer has it, under a lease", "nobody; once the lease is over, `ranonce deliver`"),
    "sent": ("the destination has taken it, and said so", "nobody"),
    "unsure": ("it may have been received, and nobody can know", "you: `ranonce outbox resolve`"),
    "dead": ("refused for good, or its attempts are spent", "you: `ranonce outbox retry`, or `resolve`"),
    "dropped": ("a person said that it need not go out any more", "nobody"),
}


def destination_keys() -> str:
    """Return the table of the keys that every destination has, defaults from the code."""
    same("keys of a destination", spec.KEYS, DESTINATION_KEY_HELP)
    usual = Route("name")

    def default(key: str) -> str:
        value = getattr(usual, key, None)
        return DESTINATION_KEY_DEFAULTS.get(key) or (
            format_duration(value) if isinstance(value, float) and key != "rate" else str(value)
        )

    rows = [(f"`{key}`", help_, default(key)) for key, help_ in DESTINATION_KEY_HELP.items()]
    return table(("key", "what for", "default"), rows)


def kind_keys(kind: str) -> str:
    """Return the table of the keys of one type of destination."""
    same(f"keys of destinations of type {kind}", spec.kind_of(kind).KEYS, KIND_KEY_HELP[kind])
    must = {key for key, (_, default) in KIND_KEY_HELP[kind].items() if default == "must be given"}
    if must != set(spec.kind_of(kind).REQUIRED):
        raise SystemExit(f"tools/message_tables.py knows another set of keys that type {kind} must have: {must}")
    rows = [(f"`{key}`", help_, default) for key, (help_, default) in KIND_KEY_HELP[kind].items()]
    return table(("key", "what for", "default"), rows)


def dedupe_times() -> str:
    """Return for how long each type of destination dedupes where its table does not say."""
    rows = []
    for kind in spec.TYPES:
        seconds = spec.kind_of(kind).dedupes({})
        shown = "for ever" if seconds == spec.FOREVER else format_duration(seconds) if seconds else "not at all"
        rows.append((f"`{kind}`", shown))
    return table(("type", "dedupes, unless `dedupes` says otherwise"), rows)


def message_states() -> str:
    """Return the table of the states of a message."""
    same("states of a message", STATES, MESSAGE_STATES)
    return table(
        ("state", "meaning", "who acts"),
        [(f"`{state}`", meaning, who) for state, (meaning, who) in MESSAGE_STATES.items()],
    )


def message_table(first: str) -> str:
    """Return the paragraphs of the rules' own page that hold a table, from its head to the footnotes."""
    paragraphs = (messages.__doc__ or "").split("\n\n")
    start = next(i for i, paragraph in enumerate(paragraphs) if paragraph.strip().startswith(first))
    end = start + 1
    while paragraphs[end].startswith("    "):
        end += 1
    text = "\n\n".join(paragraphs[start:end])
    return "```text\n" + "\n".join(line.removeprefix("    ") for line in text.splitlines()) + "\n```"
