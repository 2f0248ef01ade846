"""Description of a graph in the DOT language of Graphviz."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.kernels.base_graph import GraphNode


def digraph(nodes: Sequence[GraphNode], children: Sequence[range]) -> str:
    """Describes nodes, their order, child graphs and bodies.

    Args:
        nodes: The nodes of the graph.
        children: Indices of the nodes of each child graph; one that contains others comes before them.

    Returns:
        The text of a ``digraph``.
    """
    sections = [(body, _title(node, index)) for node in nodes for index, body in enumerate(node.bodies) if body]
    sections += [(indices, f"child graph {number}") for number, indices in enumerate(children)]
    # Sections contain one another or are disjoint. One that contains another begins before it, or is longer, or comes
    # first here.
    sections.sort(key=lambda section: (section[0].start, -len(section[0])))
    lines = ["digraph hearth_graph {", '    node [shape="box"];']
    open_ends: list[int] = []
    following = iter(enumerate(sections))
    number, section = next(following, (0, None))
    for node in nodes:
        while open_ends and open_ends[-1] <= node.index:
            open_ends.pop()
            lines.append("    " * (len(open_ends) + 1) + "}")
        while section is not None and section[0].start == node.index:
            indent = "    " * (len(open_ends) + 1)
            lines += [f"{indent}subgraph cluster_{number} {{", f"{indent}    label={_quoted(section[1])};"]
            open_ends.append(section[0].stop)
            number, section = next(following, (0, None))
        lines.append("    " * (len(open_ends) + 1) + f"n{node.index} [label={_quoted(node._describe())}];")
    while open_ends:
        open_ends.pop()
        lines.append("    " * (len(open_ends) + 1) + "}")
    lines += [f"    n{predecessor} -> n{node.index};" for node in nodes for predecessor in node.after]
    return "\n".join([*lines, "}", ""])


def _title(node: GraphNode, body: int) -> str:
    """Returns the title of a body of a conditional node."""
    part = f"case {body}" if node.kind == "switch" else "else" if body else "body"
    return f"{part} of {node.index} {node.kind}"


def _quoted(text: str) -> str:
    """Returns a text as a quoted string of the DOT language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
