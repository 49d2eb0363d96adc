"""What goes out of a ledger and comes into one: exports, imports of every ledger people have, accepted losses.

`form` says how records stand in an export, and `exporting` writes one. Reading is `lines` (text, however damaged),
`lookup` (which window does a text name?) and a module per format: `native` (exports), `facts` (journals, receipts),
`handmade` (a script's start and done lines, read by `handmade_lines`), `tables` (SQLite ledgers of scripts). Each
yields what it was told, window by window, and says what it could not read; `reading` chooses among them, `importing`
gives it to the store, batch by batch.

`loss` goes on after a store was lost: `diagnosis` says whether it was, `salvage` reads what can be read of a damaged
file, `remembered` what this host knows.
"""
