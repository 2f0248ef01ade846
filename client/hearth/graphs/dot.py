"""Description of a graph in the DOT language of Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A node of a graph as it is drawn."""

    number: int
    """Position in the graph, from 0."""
    kind: str
    label: str
    after: Sequence[int]
    """Indices of the nodes from which arrows lead to this one."""
    bodies: Sequence[range]
    """Indices of the nodes in each body of a conditional node; empty for other kinds of nodes."""


def digraph(boxes: Sequence[Box], children: Sequence[range]) -> str:
    """Describes nodes, their order, child graphs and bodies.

    Args:
        boxes: The nodes of the graph, by index.
        children: Indices of the nodes of each child graph; one that contains others comes before them.

    Returns:
        The text of a ``digraph``.
    """
    sections = [(body, _title(box, index)) for box in boxes for index, body in enumerate(box.bodies) if body]
    sections += [(indices, f"child graph {number}") for number, indices in enumerate(children)]
    # Sections contain one another or are disjoint. One that contains another begins before it, or is longer, or comes
    # first here.
    sections.sort(key=lambda section: (section[0].start, -len(section[0])))
    lines = ["digraph hearth_graph {", '    node [shape="box"];']
    open_ends: list[int] = []
    following = iter(enumerate(sections))
    number, section = next(following, (0, None))
    for box in boxes:
        while open_ends and open_ends[-1] <= box.number:
            open_ends.pop()
            lines.append("    " * (len(open_ends) + 1) + "}")
        while section is not None and section[0].start == box.number:
            indent = "    " * (len(open_ends) + 1)
            lines += [f"{indent}subgraph cluster_{number} {{", f"{indent}    label={_quoted(section[1])};"]
            open_ends.append(section[0].stop)
            number, section = next(following, (0, None))
        lines.append("    " * (len(open_ends) + 1) + f"n{box.number} [label={_quoted(box.label)}];")
    while open_ends:
        open_ends.pop()
        lines.append("    " * (len(open_ends) + 1) + "}")
    lines += [f"    n{predecessor} -> n{box.number};" for box in boxes for predecessor in box.after]
    return "\n".join([*lines, "}", ""])


def _title(box: Box, body: int) -> str:
    """Returns the title of a body of a conditional node."""
    part = f"case {body}" if box.kind == "switch" else "else" if body else "body"
    return f"{part} of {box.number} {box.kind}"


def _quoted(text: str) -> str:
    """Returns a text as a quoted string of the DOT language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
