"""Plain tables: columns as wide as their widest cell, nothing that a pipe would have to strip."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["format_table"]


def format_table(rows: Sequence[Sequence[str]], *, header: Sequence[str] = (), indent: str = "") -> str:
    """Return rows as aligned lines; the last column is not padded."""
    table = [list(row) for row in ([header, *rows] if header else rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(table[0]))] if table else []
    return "\n".join(
        indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table
    )
