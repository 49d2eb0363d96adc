"""By what a destination knows a message: what a person looks for on the other side. Nothing is connected to."""

from __future__ import annotations

from ranonce.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.delivery.base import Spec
    from ranonce.messages import Message

MESSAGE_ID, RECIPIENT = "Message-ID", "recipient"


def known_as(spec: Spec, message: Message, environ: Mapping[str, str]) -> dict[str, str]:
    """Return under which names the other side has a message, each with its value, as it was sent."""
    key = spec.key(message)
    if spec.type == "http":
        return _http(spec, key)
    if spec.type == "smtp":
        return _smtp(spec, message, key, environ)
    if spec.type == "github":
        from ranonce.delivery.github import marker

        return {"marker in the comment": marker(key)}
    if spec.type == "sql":
        from ranonce.delivery.sql import TABLE

        return {f"key in {spec.settings.get('table', TABLE)}": key}
    return {{"nats": "Nats-Msg-Id", "command": "RANONCE_MESSAGE_KEY"}[spec.type]: key}


def _http(spec: Spec, key: str) -> dict[str, str]:
    from ranonce.delivery.http import KEY_HEADER, quoted_key
    from ranonce.delivery.signing import message_id

    header = str(spec.settings.get("key_header", KEY_HEADER))
    told = {header: quoted_key(key) if header.lower() == KEY_HEADER.lower() else key}
    return {**told, **({"webhook-id": message_id(key)} if "secret" in spec.settings else {})}


def _smtp(spec: Spec, message: Message, key: str, environ: Mapping[str, str]) -> dict[str, str]:
    from ranonce.delivery.mail import KEY_HEADER, NoMail, headers_of, key_header, mail_of, message_id
    from ranonce.delivery.smtp import letterhead

    told = {KEY_HEADER: key_header(key)}
    try:
        head = letterhead(spec, environ)
    except ConfigError as error:
        return {**told, MESSAGE_ID: f"cannot be told here: {error.sentence}"}
    if message.body is None:
        return {**told, MESSAGE_ID: message_id(key, head)} if "rfc822" not in message.content_type else told
    try:
        mail = mail_of(message, key, head)
    except NoMail:
        return {}  # nothing ever went there
    headers = headers_of(mail.raw)
    own = headers[KEY_HEADER.lower()]  # a whole mail may bring its own, and then it is that one
    return {MESSAGE_ID: headers[MESSAGE_ID.lower()], RECIPIENT: mail.recipient.spec, KEY_HEADER: own}
