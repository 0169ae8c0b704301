"""`Decoder`: the structure of a language model as sizes; its weights are counted, never read.

A decoder is an embedding, layers of attention and feed-forward networks, a norm and a head that
scores the vocabulary. Attention shares keys and values between query heads (grouped queries), or
keeps them as one latent vector per token (multi-head latent attention, DeepSeek-AI 2024).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

Sharing = Literal["MHA", "GQA", "MQA", "MLA"]


class Projection(NamedTuple):
    """A matrix of weights, or several equal ones.

    Attributes:
        name: name in reports.
        out, inner: numbers of outputs and inputs.
        copies: number of equal matrices of which a token uses a part (experts); 1 otherwise.
    """

    name: str
    out: int
    inner: int
    copies: int = 1

    @property
    def weights(self) -> int:
        """Return the number of weights."""
        return self.out * self.inner * self.copies


@dataclass(frozen=True, slots=True)
class Latent:
    """Keys and values as one latent vector per token.

    Attributes:
        rank: length of that vector.
        rotary: length of the part of a key with rotary positions, which all heads share.
        query_rank: length of latent queries; None if queries are projected directly.
    """

    rank: int
    rotary: int
    query_rank: int | None


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention layer.

    Attributes:
        heads: number of query heads.
        kv_heads: number of key and value heads.
        head_dim: length of a query and of a key.
        value_dim: length of a value.
        window: number of tokens that a query sees, including itself; None for all.
        latent: sizes of multi-head latent attention; None otherwise.
        bias: whether the projections of queries, keys and values have biases.
        out_bias: whether the output projection has a bias.
        normed: whether queries and keys are normalised.
        rotary: whether queries and keys have rotary positions.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    latent: Latent | None = None
    bias: bool = False
    out_bias: bool = False
    normed: bool = False
    rotary: bool = True

    @property
    def sharing(self) -> Sharing:
        """Return how heads share keys and values."""
        if self.latent is not None:
            return "MLA"
        if self.kv_heads == self.heads:
            return "MHA"
        return "MQA" if self.kv_heads == 1 else "GQA"

    @property
    def plain_dim(self) -> int:
        """Return the length of the part of a latent key without rotary positions."""
        return self.head_dim - (self.latent.rotary if self.latent else 0)

    def projections(self, hidden: int) -> tuple[Projection, ...]:
        """Return the projections; `hidden` is the width of the model."""
        output = Projection("output projection", hidden, self.heads * self.value_dim)
        if self.latent is None:
            keys = self.kv_heads * self.head_dim
            return (
                Projection("query projection", self.heads * self.head_dim, hidden),
                Projection("key projection", keys, hidden),
                Projection("value projection", self.kv_heads * self.value_dim, hidden),
                output,
            )
        rank, width = self.latent.query_rank, self.heads * self.head_dim
        queries = (
            (Projection("query projection", width, hidden),)
            if rank is None
            else (
                Projection("query compression", rank, hidden),
                Projection("query expansion", width, rank),
            )
        )
        latent = self.latent
        return (
            *queries,
            Projection("key-value compression", latent.rank + latent.rotary, hidden),
            Projection(
                "key-value expansion", self.heads * (self.plain_dim + self.value_dim), latent.rank
            ),
            output,
        )

    def small(self, hidden: int) -> int:
        """Return the number of weights outside matrices: biases and norms."""
        found = 2 * self.head_dim if self.normed else 0
        if self.latent is not None:
            found += self.latent.rank + (self.latent.query_rank or 0)
        if self.bias:
            found += (self.heads + self.kv_heads) * self.head_dim + self.kv_heads * self.value_dim
        return found + (hidden if self.out_bias else 0)


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A feed-forward network, or a mixture of experts.

    Attributes:
        width: width of the hidden layer; that of one expert if there are experts.
        gated: whether a second product gates the first.
        bias: whether its products have biases.
        experts: number of experts; 0 for a plain network.
        chosen: number of experts per token.
        shared_width: total width of experts that process every token; 0 without any.
    """

    width: int
    gated: bool
    bias: bool = False
    experts: int = 0
    chosen: int = 0
    shared_width: int = 0

    @property
    def inputs(self) -> int:
        """Return the number of matrices that read the hidden state."""
        return 2 if self.gated else 1

    def projections(self, hidden: int) -> Iterator[Projection]:
        """Yield the projections; `hidden` is the width of the model."""
        names = ("gate projection", "up projection") if self.gated else ("up projection",)
        for prefix, width, copies in self._parts():
            for name in names:
                yield Projection(f"{prefix}{name}", width, hidden, copies)
            yield Projection(f"{prefix}down projection", hidden, width, copies)

    def small(self, hidden: int) -> int:
        """Return the number of weights outside matrices: biases and the router."""
        biases = sum((self.inputs * width + hidden) * copies for _, width, copies in self._parts())
        return (biases if self.bias else 0) + self.experts * hidden

    def _parts(self) -> Iterator[tuple[str, int, int]]:
        if not self.experts:
            yield "", self.width, 1
            return
        yield "expert ", self.width, self.experts
        if self.shared_width:
            yield "shared ", self.shared_width, 1


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        attention: attention of the layer.
        feed_forward: feed-forward network of the layer.
        norms: number of norms of the hidden state.
        parallel: whether attention and feed-forward network read the same state.
    """

    attention: Attention
    feed_forward: FeedForward
    norms: int = 2
    parallel: bool = False


@dataclass(frozen=True, slots=True)
class Decoder:
    """A language model.

    Attributes:
        name: name in answers.
        family: `model_type` of its configuration ("llama"); "" without one.
        hidden: width of the hidden state.
        vocabulary: number of tokens in the vocabulary.
        layers: layers in their order.
        tied: whether the head shares the weights of the embedding.
        positions: number of learned positions; 0 without a table of them.
        norm_bias: whether norms have biases (layer norm) or not (RMS norm).
        embedding_width: width of the embedding if it differs from `hidden`.
        longest: longest context that the model supports; None if the configuration gives none.
        stored: format of the weights by the configuration ("int4"); None if not quantised.
        notes: remarks on how the configuration was read.
    """

    name: str
    family: str
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]
    tied: bool = False
    positions: int = 0
    norm_bias: bool = False
    embedding_width: int | None = None
    longest: int | None = None
    stored: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def quantisable(self) -> int:
        """Return the number of weights in matrices of layers: those that are quantised."""
        return sum(
            p.weights
            for layer in self.layers
            for p in (
                *layer.attention.projections(self.hidden),
                *layer.feed_forward.projections(self.hidden),
            )
        )

    @property
    def others(self) -> int:
        """Return the number of weights in embedding, head, norms, biases and routers."""
        width = self.embedding_width or self.hidden
        tables = self.vocabulary * width * (1 if self.tied else 2) + self.positions * self.hidden
        if width != self.hidden:
            tables += 2 * width * self.hidden
        norm = self.hidden * (2 if self.norm_bias else 1)
        return (
            tables
            + norm
            + sum(
                layer.norms * norm
                + layer.attention.small(self.hidden)
                + layer.feed_forward.small(self.hidden)
                for layer in self.layers
            )
        )

    @property
    def parameters(self) -> int:
        """Return the number of all weights."""
        return self.quantisable + self.others

    @property
    def active_parameters(self) -> int:
        """Return the number of weights that one token uses: of experts only the chosen ones."""
        idle = 0
        for layer in self.layers:
            network = layer.feed_forward
            if network.experts:
                one = (network.inputs + 1) * self.hidden * network.width
                idle += (network.experts - network.chosen) * one
        return self.parameters - idle
