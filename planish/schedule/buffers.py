"""The memory a program is made of, by name."""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from planish.ir.node import Node
from planish.ops.content import Content
from planish.schedule.kernel import Buffer
from planish.types import Dim


@dataclass
class Buffers:
    """`of` has the buffers of graph nodes; `constants` what those hold that are constant; `scratch`
    buffers that belong to no node (packed operands); `views` says which buffer's memory another name looks
    at; `slices` which are pieces of a buffer, at an offset in bytes that a loop's counter moves."""

    of: dict[Node, Buffer]
    views: dict[str, str] = field(default_factory=dict)
    constants: dict[str, Content] = field(default_factory=dict)
    scratch: list[Buffer] = field(default_factory=list)
    slices: dict[str, tuple[str, Dim]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node, buffer in self.of.items():
            if node.op.name == "constant":
                self.constants.setdefault(buffer.name, node.attributes)

    @property
    def by_name(self) -> dict[str, Buffer]:
        return {b.name: b for b in (*self.of.values(), *self.scratch)}

    @property
    def bases(self) -> dict[str, str]:
        """slice -> the buffer it is a piece of."""
        return {name: base for name, (base, _) in self.slices.items()}

    def owner(self, name: str) -> str:
        """The buffer whose memory `name` is."""
        return self.views.get(name, name)

    def is_constant(self, buffer: Buffer) -> bool:
        return self.owner(buffer.name) in self.constants

    def include(self, inner: Buffers) -> None:
        """Enter what a part of the program is made of; what its nodes share with a buffer from outside is a
        view."""
        self.scratch += [b for b in inner.of.values() if b.name not in inner.views] + inner.scratch
        self.views |= inner.views
        self.constants |= inner.constants
        self.slices |= inner.slices

    def copy(self) -> Buffers:
        """The same, to which what is added is not added here."""
        return replace(self, views=dict(self.views), constants=dict(self.constants),
                       scratch=list(self.scratch), slices=dict(self.slices))

    def take(self, other: Buffers) -> None:
        """Become what a copy has become."""
        self.views, self.constants, self.scratch, self.slices = (
            other.views, other.constants, other.scratch, other.slices)

    def add(self, buffer: Buffer, content: Content | None = None) -> Buffer:
        """Enter a buffer no node owns; with a content, a constant."""
        self.scratch.append(buffer)
        if content is not None:
            self.constants[buffer.name] = content
        return buffer
