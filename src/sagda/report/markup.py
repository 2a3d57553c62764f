"""Tables of a page."""

import html


def in_table(rows: list[list[str]], head: list[str]) -> str:
    cell = lambda kind, text: f"<{kind}>{html.escape(text)}</{kind}>"
    line = lambda kind, cells: f"<tr>{''.join(cell(kind, c) for c in cells)}</tr>"
    body = "".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def scrolled(table: str) -> str:
    return f'<div class="scroll">{table}</div>'
