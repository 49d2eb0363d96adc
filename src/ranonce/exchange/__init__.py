"""What goes out of a ledger and comes into one: exports, imports of every ledger people have, accepted losses.

`form` says how records stand in an export. Reading is `lines` (text, however damaged) and one module per format:
`native` (exports), `facts` (journals and receipts), `handmade` (a script's start and done lines), `tables` (SQLite
ledgers of scripts). Each yields what it was told, window by window, and says what it could not read; `importing`
gives that to the store, batch by batch. `loss` puts back what this host remembers after a store was lost.
"""
