"""`run.items` and `run.step`: the pieces of a run's work, each done once in a generation."""

from __future__ import annotations

import contextvars
import inspect
import json
from collections.abc import Iterable
from functools import partial
from typing import Generic, TypeVar

from ranonce.emission import check_item
from ranonce.errors import UsageError
from ranonce.python.emitting import INSIDE, result_of
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator
    from typing import Any

    from ranonce.python.emitting import Piece
    from ranonce.python.run import Run

Item = TypeVar("Item")


class Items(Generic[Item]):
    """A loop over what is still to be done: `for item in run.items(…)`, or `async for`."""

    def __init__(
        self, run: Run, iterable: Iterable[Item] | AsyncIterable[Item], key: Callable[[Item], str | int] | None
    ) -> None:
        self._run = run
        self._iterable = iterable
        self._key = key

    def __iter__(self) -> Iterator[Item]:
        if not isinstance(self._iterable, Iterable):
            raise UsageError(f"{shown(self._iterable)} is no plain iterable.", "Write: async for … in run.items(…)")
        done = self._begun()
        for item in self._iterable:
            name = self._name(item)
            if name in done:
                continue
            piece = self._run._begin_piece(name)
            try:
                yield item
                self._run._mark(piece)
            finally:
                self._run._emitter.leave(piece, None)
            done.add(name)
        self._run._may_speak()

    def __aiter__(self) -> AsyncIterator[Item]:
        return _Later(self, self._iterable)

    def _begun(self) -> set[str]:
        self._run._may_speak()
        outer = self._run._emitter.outer()
        if outer is not None:
            raise UsageError(
                f"this is inside {outer.shown!r}, which is done whole.",
                "Loop over items outside of items and steps; a part of an item is a run.step(…).",
            )
        return self._run._emitter.done()

    def _name(self, item: Item) -> str:
        key: object = item if self._key is None else self._key(item)
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise UsageError(f"the key of an item is {shown(key)}.", "It is text or a whole number: key=lambda item: …")
        return check_item("an item", str(key))


class _Later(Generic[Item]):
    """The same loop, `async`: what may wait for a disk is done in other threads.

    No generator: one that is left by `break` would be closed when the event loop comes to it, and until then what is
    emitted would belong to its item.
    """

    def __init__(self, items: Items[Item], iterable: Iterable[Item] | AsyncIterable[Item]) -> None:
        self._done: set[str] | None = None
        self._piece: Piece | None = None
        self._items = items
        self._run = items._run
        self._source = _each(iterable) if isinstance(iterable, Iterable) else aiter(iterable)

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._done is None:
            self._done = await _aside(self._items._begun)
        piece = self._piece
        if piece is not None:
            try:
                await _aside(partial(self._run._mark, piece))
            finally:
                self._leave()
            self._done.add(piece.name)
        async for item in self._source:
            name = self._items._name(item)
            if name not in self._done:
                self._piece = self._run._begin_piece(name)
                return item
        self._run._may_speak()
        raise StopAsyncIteration

    def _leave(self) -> None:
        piece, self._piece = self._piece, None
        if piece is not None:
            self._run._emitter.leave(piece, None)

    def __del__(self) -> None:
        self._leave()


async def _each(iterable: Iterable[Item]) -> AsyncIterator[Item]:
    for item in iterable:
        yield item


async def _aside(function: Callable[[], Any]) -> Any:
    """Call what may wait for a disk in another thread, and see it to its end whatever happens to this task."""
    import asyncio  # whoever awaits has loaded it

    context = contextvars.copy_context()
    answer = asyncio.get_running_loop().run_in_executor(None, context.run, function)
    cancelled: asyncio.CancelledError | None = None
    while not answer.done():
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return answer.result()


# --- steps ----------------------------------------------------------------------------------------------------------


def _step_name(run: Run, name: str) -> tuple[str, Piece | None]:
    """Return the whole name of a step, which is one of the item it is in, and that item."""
    run._may_speak()
    if not isinstance(name, str):
        raise UsageError(f"{shown(name)} is no name of a step.", "It is text.")
    check_item("a step", name)
    outer = run._emitter.outer()
    if outer is None:
        return name, None
    if outer.is_step:
        raise UsageError(f"this is inside the step {outer.name.rpartition(INSIDE)[2]!r}.", "A step has no steps.")
    return f"{outer.name}{INSIDE}{name}", outer


def step(run: Run, name: str, function: Callable[[], Any]) -> Any:
    """Return what a step returned when it was done, or do it now."""
    if not callable(function):
        raise UsageError(f"{shown(function)} cannot be called.", "Write: run.step(NAME, lambda: …)")
    if inspect.iscoroutinefunction(function):
        return _step_later(run, name, function)
    whole, outer = _step_name(run, name)
    found = run._emitter.result(whole)
    if found is not None:
        return _kept(found.result)
    piece = run._begin_piece(whole, is_step=True)
    try:
        given = function()
        if inspect.isawaitable(given):
            if inspect.iscoroutine(given):
                given.close()
            raise UsageError(f"the step {name!r} returned something to await.", "Give it an async def function.")
        result = result_of(name, given)
        run._mark(piece, result)
    finally:
        run._emitter.leave(piece, outer)
    return _kept(result)


async def _step_later(run: Run, name: str, function: Callable[[], Awaitable[Any]]) -> Any:
    whole, outer = _step_name(run, name)
    found = await _aside(partial(run._emitter.result, whole))
    if found is not None:
        return _kept(found.result)
    piece = run._begin_piece(whole, is_step=True)
    try:
        result = result_of(name, await function())
        await _aside(partial(run._mark, piece, result))
    finally:
        run._emitter.leave(piece, outer)
    return _kept(result)


def _kept(result: bytes | None) -> Any:
    return None if result is None else json.loads(result)
