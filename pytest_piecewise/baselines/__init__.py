"""Stored numbers: `<directory>/<platform>/<case>.json`, one metric per line, each with the gate that it is held to.

A baseline is compared with nothing but the same case on the same platform. `entries` are the lines and their rules,
`files` reads and writes, `judge` compares, `update` says what would change, `survey` looks at a whole directory.
"""
