"""The graph IR: nodes, graphs, text form, verifier, reference interpreter."""
from planish.ir.graph import Graph, Location, Note
from planish.ir.interpret import interpret
from planish.ir.node import Node, constant, get_item, input_node
from planish.ir.text import parse_graph, print_graph
from planish.ir.verify import verify

__all__ = ["Graph", "Location", "Node", "Note", "constant", "get_item", "input_node", "interpret",
           "parse_graph", "print_graph", "verify"]
