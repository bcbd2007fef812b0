"""Where a plan is cut: shapes that only a run tells end a segment, and what follows is planned then."""

from __future__ import annotations

from dataclasses import replace

from minicnn.graph import Graph, Node


def cut(graph: Graph) -> tuple[Graph, Graph | None]:
    """The nodes whose input shapes are known, and the rest. What the rest reads of the head becomes its
    inputs."""
    unknown = {name for node in graph.nodes for name in node.outputs if name and not is_known(graph, name)}
    head: list[Node] = []
    tail: list[Node] = []
    late: set[str] = set()
    for node in graph.nodes:
        waits = any(name in unknown or name in late for name in node.inputs)
        (tail if waits else head).append(node)
        if waits:
            late.update(node.outputs)
    if not tail:
        return graph, None
    made = {name for node in head for name in node.outputs} | set(graph.inputs)
    read = {name for node in tail for name in node.inputs} | set(graph.outputs)
    border = tuple(
        name for name in (*graph.inputs, *(o for n in head for o in n.outputs)) if name in read & made
    )
    return (
        replace(graph, nodes=tuple(head), outputs=border),
        replace(graph, nodes=tuple(tail), inputs=border),
    )


def is_known(graph: Graph, name: str) -> bool:
    known = graph.types.get(name)
    return known is not None and known.is_known
