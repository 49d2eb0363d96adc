"""How fast it is, beside what is possible: `python -m benchmarks [--quick] [NAME…]`, run by `make bench`.

Durations change with the disk within the hour, so every figure is a ratio to a limit that is measured in the same run,
in turn with it. How each limit is made (statements, batch sizes, settings) stands beside the figure, in one module a
family:

    claims       claim and finish, duplicate checks and renewals in process, beside raw SQLite loops
    contention   eight processes at once, beside one process, and beside SQLite's own waiting
    commands     `ranonce run` as a process, one and forty at once, beside `least_wrapper.py`
    questions    status, show and probe in large ledgers, beside small ones, and beside a bare index read
    passthrough  the output of a child, beside `cat`

Writes are durable on both sides: WAL, `synchronous=FULL`.
"""
