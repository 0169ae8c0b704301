"""The kernels that `generate` of transformers launches for a pass: one per operation.

An RMS norm takes eight kernels (a layer norm is one in PyTorch), rotary positions take five for
queries and five for keys, and each product has its own. A decode step that appends to the cache
rewrites all of it. Attention is the fused kernel of `scaled_dot_product_attention`.
"""

from __future__ import annotations

from dippm.decide.language import kernels as k
from dippm.decide.language.architecture import Attention, Decoder, FeedForward, Layer
from dippm.decide.language.engine import (
    PLAIN,
    busy_experts,
    causal_work,
    keys_per_query,
    launch_embedding,
)
from dippm.decide.language.formats import WeightFormat
from dippm.decide.language.kernels import KernelList, Pass
from dippm.decide.language.memory import kept_tokens

WIDENED_ROWS = 50
"""Number of rows above which kernels for integer weights (exllama v2, which transformers calls)
convert a matrix to half precision in memory before they multiply."""
ONCE = 24
"""Small kernels of a pass outside the layers: masks, tables of cosines and sines, and the logits
processing of `generate`."""


def eager_kernels(decoder: Decoder, done: Pass, weights: WeightFormat) -> KernelList:
    """Return the kernels of a pass, see `engine_kernels`."""
    found = KernelList()
    launch_embedding(found, decoder, done)
    found.add("once a pass", k.stream("elementwise", done.batch, 1), ONCE)
    for layer in decoder.layers:
        _EagerLayer(found, decoder, done, weights).launch(layer)
    _launch_head(found, decoder, done)
    return found


def _launch_head(found: KernelList, decoder: Decoder, done: Pass) -> None:
    rows, width = done.batch * done.scored, decoder.embedding_width or decoder.hidden
    launch_norm(found, rows, decoder.hidden, has_bias=decoder.norm_bias)
    if width != decoder.hidden:
        found.add("head", k.product(rows, width, decoder.hidden, PLAIN))
    found.add("head", k.product(rows, decoder.vocabulary, width, PLAIN))
    found.add("sampling", k.stream("cast", rows, decoder.vocabulary, out_bytes=k.FULL))
    found.add("sampling", k.reduction(done.batch, decoder.vocabulary, in_bytes=k.FULL))


def launch_norm(found: KernelList, rows: float, width: float, *, has_bias: bool) -> None:
    """Launch a norm: one kernel of a layer norm, eight of an RMS norm in float32."""
    if has_bias:
        found.add("norm", k.norm(rows, width))
        return
    wide = k.FULL
    found.add("norm", k.stream("cast", rows, width, out_bytes=wide))
    found.add("norm", k.stream("elementwise", rows, width, in_bytes=wide, flops=4.0))
    found.add("norm", k.reduction(rows, width, in_bytes=wide))
    found.add("norm", k.stream("elementwise", rows, 1, in_bytes=wide), 2)
    found.add("norm", k.stream("broadcast", rows, width, in_bytes=wide, repeated=True))
    found.add("norm", k.stream("cast", rows, width, in_bytes=wide, out_bytes=k.HALF))
    found.add("norm", k.stream("broadcast", rows, width, repeated=True))


class _EagerLayer:
    def __init__(
        self, found: KernelList, decoder: Decoder, done: Pass, weights: WeightFormat
    ) -> None:
        self.found, self.hidden, self.done, self.weights = found, decoder.hidden, done, weights
        self.norm_bias = decoder.norm_bias

    def launch(self, layer: Layer) -> None:
        """Launch a layer."""
        tokens, hidden = self.done.tokens, self.hidden
        for _ in range(layer.norms):
            launch_norm(self.found, tokens, hidden, has_bias=self.norm_bias)
        self._attend(layer.attention)
        self._feed(layer.feed_forward)
        self.found.add("residual", k.stream("elementwise", tokens, hidden, reads=2), 2)
        sums = 1 if layer.parallel else 2
        self.found.reduced_bytes += [float(k.HALF * tokens * hidden)] * sums

    def _attend(self, a: Attention) -> None:
        tokens, done, found = self.done.tokens, self.done, self.found
        for p in a.projections(self.hidden):
            self._project(p.name, tokens, p.out, p.inner)
        if a.latent is not None:
            for rank in (a.latent.query_rank, a.latent.rank):
                if rank:
                    launch_norm(found, tokens, rank, has_bias=False)
            found.add("keys side by side", k.stream("concat", tokens, a.heads * a.head_dim), 2)
        if a.normed:
            for heads in (a.heads, a.kv_heads):
                launch_norm(found, tokens * heads, a.head_dim, has_bias=False)
        if a.rotary:
            turned = a.latent.rotary if a.latent else a.head_dim
            for heads in (a.heads, 1 if a.latent else a.kv_heads):
                self._turn(heads * turned)
        kept = kept_tokens(a, done.context)
        if done.is_decode:
            for width in (a.head_dim, a.value_dim):
                rows = done.batch * a.kv_heads * kept
                found.add("cache append", k.stream("concat", rows, width, strided=True))
        read = (
            k.HALF
            * done.batch
            * (a.heads * done.queries * a.head_dim + a.kv_heads * (a.head_dim + a.value_dim) * kept)
        )
        copies = done.batch * a.heads
        found.add(
            "attention",
            k.attention(
                copies,
                done.queries,
                keys_per_query(a, done),
                a.head_dim,
                read_bytes=read,
                value_dim=a.value_dim,
                share=causal_work(a, done),
            ),
        )

    def _turn(self, width: int) -> None:
        """Launch the rotary positions: x · cos + (-x₂, x₁) · sin."""
        tokens, found = self.done.tokens, self.found
        found.add("positions", k.stream("broadcast", tokens, width, repeated=True), 2)
        found.add("positions", k.stream("elementwise", tokens, width / 2))
        found.add("positions", k.stream("concat", tokens, width))
        found.add("positions", k.stream("elementwise", tokens, width, reads=2))

    def _feed(self, network: FeedForward) -> None:
        tokens, hidden, found = self.done.tokens, self.hidden, self.found
        if not network.experts:
            self._network("", network, tokens, network.width)
            return
        found.add("router", k.product(tokens, network.experts, hidden, PLAIN))
        found.add("router", k.stream("softmax", tokens, network.experts, flops=4.0))
        found.add("router", k.stream("elementwise", tokens, network.experts), 4)
        busy = max(1, round(busy_experts(network, tokens)))
        rows = tokens * network.chosen / busy
        for _ in range(busy):
            found.add("expert rows", k.lookup(rows, hidden))
            self._network("expert ", network, rows, network.width)
            found.add("expert sum", k.stream("broadcast", rows, hidden, repeated=True))
            found.add("expert sum", k.stream("gather", rows, hidden, reads=2))
        if network.shared_width:
            self._network("shared ", network, tokens, network.shared_width)
            found.add("expert sum", k.stream("elementwise", tokens, hidden, reads=2))

    def _network(self, prefix: str, network: FeedForward, rows: float, width: int) -> None:
        found = self.found
        name = f"{prefix}up and gate" if network.gated else f"{prefix}up"
        self._project(name, rows, width, self.hidden, network.inputs)
        activated = k.stream("costly_activation", rows, width, flops=4.0)
        found.add("activation", activated)
        if network.gated:
            found.add("activation", k.stream("elementwise", rows, width, reads=2))
        self._project(f"{prefix}down", rows, self.hidden, width)

    def _project(self, name: str, rows: float, out: int, inner: int, times: int = 1) -> None:
        """Launch products; with many rows, integer weights are converted in memory first."""
        weights = self.weights
        if rows > WIDENED_ROWS and weights.name in ("int4", "int8"):
            widened = k.stream("cast", out, inner)
            read = weights.bytes_each * out * inner
            self.found.add("widening", widened._replace(read_bytes=0.0, weight_bytes=read), times)
            weights = PLAIN
        self.found.add(name, k.product(rows, out, inner, weights), times)
