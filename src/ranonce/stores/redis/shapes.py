"""The shape of each answer, so that what no server gives is found where it comes in, and believed nowhere.

A proxy, or something else behind the address, may answer with anything. What does not have the shape of an answer to
what was asked is no server's: it is neither taken apart further nor taken for a decision.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ranonce.stores.redis.wire import Command

    Fits = Callable[[Any], bool]


def _text(told: object) -> bool:
    return isinstance(told, bytes)


def _maybe(told: object) -> bool:
    return told is None or isinstance(told, bytes)


def _count(told: object) -> bool:
    return isinstance(told, int)


def _digits(told: object) -> bool:
    return isinstance(told, bytes) and told.isdigit()


def _all(fits: Fits) -> Fits:
    return lambda told: isinstance(told, list) and all(map(fits, told))


_texts, _maybes, _counts, _numbers = _all(_text), _all(_maybe), _all(_count), _all(_digits)


def _pairs(told: object) -> bool:
    return _texts(told) and len(told) % 2 == 0  # type: ignore[arg-type]


def _story(told: object) -> bool:
    return told is None or _maybes(told)  # None: there is too much of it


def _row(*parts: Fits) -> Fits:
    return lambda told: (
        isinstance(told, list)
        and len(told) == len(parts)
        and all(fits(each) for fits, each in zip(parts, told, strict=True))
    )


def _as_many(answer: list[Any], *pairs: tuple[int, int]) -> bool:
    return all(len(answer[one]) == len(answer[other]) for one, other in pairs)


def _chapter(told: list[Any]) -> bool:
    fits = _row(_text, _text, _texts, _maybes, _texts, _texts, _maybes, _maybes, _texts, _texts)(told)
    return fits and _as_many(told, (2, 3)) and len(told[4]) + len(told[5]) == len(told[6])


def _glance(told: list[Any]) -> bool:
    lists = (_texts, _maybes, _texts, _maybes, _pairs, _texts, _maybes, _texts, _texts, _texts, _maybes)
    fits = _row(_text, _text, _text, _text, *lists)(told)
    return fits and _as_many(told, (4, 5), (6, 7), (9, 10), (13, 14))


def _queue(told: list[Any]) -> bool:
    lists = (_texts, _maybes, _maybes, _texts, _maybes)
    fits = _row(_text, _maybe, *lists, _maybe, _digits, _digits)(told)
    return fits and _as_many(told, (2, 3), (2, 4), (5, 6))


def _known(told: list[Any]) -> bool:
    return _row(_text, _maybes, _maybes)(told) and _as_many(told, (1, 2))


#: What a script answers, by the word that its answer begins with. There may be two forms of one.
SCRIPTS: dict[bytes, tuple[Fits, ...]] = {
    b"other": (_row(_text, _text),),
    b"seq": (_row(_text, _text),),
    b"denied": (_row(_text, _text),),
    b"lost": (_row(_text, _text),),
    b"moved": (_row(_text, _count),),
    b"raced": (_row(_text),),
    b"written": (_row(_text, _digits, _numbers), _row(_text, _digits, _numbers, _numbers)),
    b"read": (_row(_text, _maybe, _maybe, _pairs, _texts, _texts, _texts, _story, _digits, _digits),),
    b"changed": (_row(_text),),
    b"many": (_row(_text),),
    b"chapter": (_chapter,),
    b"outline": (_row(_text, _text), _row(_text, _text, _text, _text, _text, _texts)),
    b"glance": (_glance,),
    b"ends": (_row(_text, _text), _row(_text, _text, _maybe)),
    b"queue": (_queue,),
    b"known": (_known,),
    b"undelivered": (_row(_text, _texts),),
    b"tally": (_row(_text, _all(_row(_text, _text, _text, _digits, _text)), _texts),),
    b"sums": (_row(_text, *(_count,) * 6, _counts),),
    b"counts": (_row(_text, *(_count,) * 7, _counts),),
}


def _script(told: Any) -> bool:
    word = told[0] if isinstance(told, list) and told else None
    return isinstance(word, bytes) and any(fits(told) for fits in SCRIPTS.get(word, ()))


#: What a command answers. What is not here is asked by nobody who takes its answer apart.
COMMANDS: dict[object, Fits] = {
    "HGET": _maybe,
    "ZSCORE": _maybe,
    "HEXISTS": _count,
    "HGETALL": _pairs,
    "HKEYS": _texts,
    "HVALS": _texts,
    "HMGET": _maybes,
    "LRANGE": _texts,
    "ZRANGE": _texts,
    "ZRANGEBYSCORE": _texts,
    "ZREVRANGEBYSCORE": _texts,
    "ZCOUNT": _count,
    "EXISTS": _count,
    "HSET": _count,
    "HSETNX": _count,
    "UNLINK": _count,
    "TYPE": _text,
    "INFO": _text,
    ("CONFIG", "GET"): _pairs,
    "TIME": _row(_digits, _digits),
    "SCAN": _row(_digits, _texts),
    "EVAL": _script,
    "EVALSHA": _script,
}


def fits(command: Command, answer: object) -> bool:
    """Whether an answer, which is none of an error, has the shape of one to this command."""
    shape = COMMANDS.get(command[:2], COMMANDS.get(command[0]))
    if shape is not None and not shape(answer):
        return False
    if command[0] == "HMGET":
        return len(answer) == len(command) - 2  # type: ignore[arg-type]
    return "WITHSCORES" not in command or _pairs(answer)
