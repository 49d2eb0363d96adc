"""Drive an `async def` job: what may wait for a disk or a lock happens in other threads, its own code in the loop."""

from __future__ import annotations

import asyncio
import contextvars

from ranonce.errors import StoreUnavailable
from ranonce.python.job import Own, called, is_awaitable, receipt_of
from ranonce.python.verdict import TimeLimit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from ranonce.python.connections import Connections
    from ranonce.python.job import Call, Step
    from ranonce.python.run import Ended
    from ranonce.receipts import Receipt


async def receipt_later(
    conduct: Callable[[Call, Connections], Generator[Step, Any, list[Ended]]], call: Call, opened: Connections | None
) -> Receipt:
    """Go through the steps in the running loop, and return the receipt that counts."""
    return receipt_of(await ends_of(conduct, call, opened))


async def ends_of(
    conduct: Callable[[Call, Connections], Generator[Step, Any, list[Ended]]], call: Call, opened: Connections | None
) -> list[Ended]:
    """Go through the steps in the running loop; return how each window ended.

    A cancellation never leaves a claim behind that nobody works on: what has begun in another thread is waited for,
    and the job's own code is then cancelled before it begins.
    """
    aside = _Aside()
    call = call.replace(keeps_time=True, over=lambda: aside.cancelled is not None)
    connections = opened or await aside(call.place.open)
    steps, answer, trouble = conduct(call, connections), None, None
    try:
        while True:
            step = steps.send(answer) if trouble is None else steps.throw(trouble)
            answer, trouble = None, None
            if isinstance(step, Own):
                answer = (aside.cancelled, None) if aside.cancelled else await _called(step)
                continue
            try:
                answer = await aside(step)
            except StoreUnavailable as error:
                trouble = error
    except StopIteration as ended:
        if aside.cancelled:
            raise aside.cancelled from None
        return ended.value  # type: ignore[no-any-return]
    finally:
        if opened is None:
            await aside(connections.close)


async def _called(step: Own) -> tuple[BaseException | None, object]:
    error, given = called(step)
    if error is not None or not is_awaitable(given):
        return error, given
    limit = step.run._terms.spec.timeout
    try:
        async with asyncio.timeout(limit) as timer:
            given = await given
        return None, given
    except BaseException as raised:  # noqa: BLE001 - each way out is recorded, and raised again afterwards
        if timer.expired():
            return TimeLimit(f"{step.run!r} took longer than {limit:g} seconds"), None
        return raised, None


class _Aside:
    """Calls functions in other threads, and waits for their end even if this task is cancelled meanwhile.

    What is waited for is no task: a loop that ends cancels all of its tasks, and would leave a claim to nobody.
    """

    def __init__(self) -> None:
        self.cancelled: asyncio.CancelledError | None = None

    async def __call__(self, function: Callable[[], Any]) -> Any:
        context = contextvars.copy_context()
        answer = asyncio.get_running_loop().run_in_executor(None, context.run, function)
        while not answer.done():
            try:
                await asyncio.wait([answer])
            except asyncio.CancelledError as error:
                self.cancelled = error
        return answer.result()
