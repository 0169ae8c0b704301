"""Kernels of one pass of a language model, as a serving engine or as `generate` launches them.

`engine_kernels`: in a serving engine, one product computes queries, keys and values, and one
computes gate and up; a norm adds the residual first; one kernel applies rotary positions, and
another writes keys and values to the paged cache; attention handles the queries of a key-value
group together; experts are two grouped products. vLLM, SGLang and TensorRT-LLM agree with this list
within a kernel or two per layer.

`eager_kernels`: `generate` of transformers launches one kernel per operation, see below.
"""

from __future__ import annotations

from dippm.decide.language import kernels as k
from dippm.decide.language.architecture import Attention, Decoder, FeedForward, Layer
from dippm.decide.language.kernels import KernelList, Pass
from dippm.decide.language.memory import kept_tokens
from dippm.decide.language.setting import WeightFormat
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.attention import causal_share

PLAIN = WeightFormat("half", 2.0)
"""Format of matrices that are not quantised, such as embedding, head and router."""

# Passes of a serving engine.


def engine_kernels(
    decoder: Decoder, done: Pass, weights: WeightFormat, *, cache_width: int = 2
) -> KernelList:
    """Return the kernels of a pass in a serving engine.

    Args:
        decoder: model, or the shard of one GPU.
        done: pass over a prompt, or a decode step.
        weights: format of the matrices of the layers.
        cache_width: bytes per element of keys and values in the cache.
    """
    found = KernelList()
    _launch_embedding(found, decoder, done)
    for layer in decoder.layers:
        _EngineLayer(found, decoder.hidden, done, weights, cache_width).launch(layer)
    _launch_engine_head(found, decoder, done)
    return found


def _launch_embedding(found: KernelList, decoder: Decoder, done: Pass) -> None:
    """Launch the embedding of tokens."""
    width = decoder.embedding_width or decoder.hidden
    found.add("embedding", k.lookup(done.tokens, width))
    if decoder.positions:
        found.add("embedding", k.lookup(done.tokens, decoder.hidden))
        found.add("embedding", k.stream("elementwise", done.tokens, decoder.hidden, reads=2))
    if width != decoder.hidden:
        found.add("embedding", k.product(done.tokens, decoder.hidden, width, PLAIN))


def _launch_engine_head(found: KernelList, decoder: Decoder, done: Pass) -> None:
    """Launch the last norm, the head, and the argmax over its logits."""
    rows, width = done.batch * done.scored, decoder.embedding_width or decoder.hidden
    found.add("norm", k.norm(rows, decoder.hidden, tensors=2))
    if width != decoder.hidden:
        found.add("head", k.product(rows, width, decoder.hidden, PLAIN))
    found.add("head", k.product(rows, decoder.vocabulary, width, PLAIN))
    found.add("sampling", k.stream("cast", rows, decoder.vocabulary, out_bytes=k.FULL))
    found.add("sampling", k.reduction(done.batch, decoder.vocabulary, in_bytes=k.FULL))


class _EngineLayer:
    def __init__(
        self, found: KernelList, hidden: int, done: Pass, weights: WeightFormat, cache_width: int
    ) -> None:
        self.found, self.hidden, self.done = found, hidden, done
        self.weights, self.cache_width = weights, cache_width

    def launch(self, layer: Layer) -> None:
        """Launch a layer."""
        tokens, hidden = self.done.tokens, self.hidden
        self.found.add("norm", k.norm(tokens, hidden, tensors=2), layer.norms)
        if layer.attention.latent is None:
            self._grouped_attention(layer.attention)
        else:
            self._latent_attention(layer.attention)
        self._project("output projection", hidden, layer.attention)
        self._feed_forward(layer.feed_forward)
        sums = 1 if layer.parallel else 2
        self.found.reduced_bytes += [float(k.HALF * tokens * hidden)] * sums

    def _project(self, name: str, out: int, attention: Attention) -> None:
        inner = attention.heads * attention.value_dim
        self.found.add(name, k.product(self.done.tokens, out, inner, self.weights))

    def _grouped_attention(self, a: Attention) -> None:
        tokens, done = self.done.tokens, self.done
        kept = a.kv_heads * (a.head_dim + a.value_dim)
        width = a.heads * a.head_dim + kept
        self.found.add("query-key-value", k.product(tokens, width, self.hidden, self.weights))
        turned = a.heads + a.kv_heads
        if a.normed:
            self.found.add("norm", k.norm(tokens * a.heads, a.head_dim))
            self.found.add("norm", k.norm(tokens * a.kv_heads, a.head_dim))
        if a.rotary:
            rope = k.stream("elementwise", tokens, turned * a.head_dim, flops=3.0, in_place=True)
            self.found.add("positions", rope)
        written = k.stream("copy", tokens, kept, out_bytes=self.cache_width)
        self.found.add("cache write", written)
        keys = keys_per_query(a, done)
        read = done.batch * (
            k.HALF * a.heads * done.queries * a.head_dim
            + self.cache_width * kept * kept_tokens(a, done.context)
        )
        self.found.add(
            "attention",
            k.attention(
                done.batch * a.kv_heads,
                done.queries * a.heads / a.kv_heads,
                keys,
                a.head_dim,
                read_bytes=read,
                value_dim=a.value_dim,
                share=causal_work(a, done),
            ),
        )

    def _latent_attention(self, a: Attention) -> None:
        """Launch multi-head latent attention.

        A decode step moves the queries into the latent space, where the cache is, and the result
        out of it. A prompt expands keys and values instead, and attends to these.
        """
        assert a.latent is not None
        latent, done, tokens, found = a.latent, self.done, self.done.tokens, self.found
        queries = a.heads * a.head_dim
        narrow = latent.rank + latent.rotary
        if latent.query_rank:
            joined = latent.query_rank + narrow
            found.add("compression", k.product(tokens, joined, self.hidden, self.weights))
            found.add("norm", k.norm(tokens, latent.query_rank))
            expanded = k.product(tokens, queries, latent.query_rank, self.weights)
            found.add("query expansion", expanded)
        else:
            joined = queries + narrow
            found.add("query-key-value", k.product(tokens, joined, self.hidden, self.weights))
        found.add("norm", k.norm(tokens, latent.rank))
        turned = (a.heads + 1) * latent.rotary
        found.add("positions", k.stream("elementwise", tokens, turned, flops=3.0, in_place=True))
        found.add("cache write", k.stream("copy", tokens, narrow, out_bytes=self.cache_width))
        kept = self.cache_width * narrow * kept_tokens(a, done.context)
        if not done.is_decode:
            out = a.heads * (a.plain_dim + a.value_dim)
            found.add("key-value expansion", k.product(tokens, out, latent.rank, self.weights))
            read = k.HALF * tokens * a.heads * (2 * a.head_dim + a.value_dim)
            found.add(
                "attention",
                k.attention(
                    done.batch * a.heads,
                    done.queries,
                    keys_per_query(a, done),
                    a.head_dim,
                    read_bytes=read,
                    value_dim=a.value_dim,
                    share=causal_work(a, done),
                ),
            )
            return
        absorbed = k.batched_product(a.heads, done.batch, latent.rank, a.plain_dim)
        found.add("query to latent", absorbed)
        read = done.batch * (k.HALF * a.heads * narrow + kept)
        found.add(
            "attention",
            k.attention(
                done.batch,
                a.heads,
                keys_per_query(a, done),
                narrow,
                read_bytes=read,
                value_dim=latent.rank,
            ),
        )
        leaving = k.batched_product(a.heads, done.batch, a.value_dim, latent.rank)
        found.add("latent to value", leaving)

    def _feed_forward(self, network: FeedForward) -> None:
        tokens, hidden, found = self.done.tokens, self.hidden, self.found
        if not network.experts:
            self._network("", network, network.width)
            return
        found.add("router", k.product(tokens, network.experts, hidden, PLAIN))
        found.add("router", k.stream("softmax", tokens, network.experts, flops=4.0))
        rows, busy = tokens * network.chosen, busy_experts(network, tokens)
        width = network.width
        wide = k.grouped_product(rows, network.inputs * width, hidden, self.weights, groups=busy)
        found.add("expert products", wide)
        found.add("activation", _activation(network, rows, width))
        down = k.grouped_product(rows, hidden, width, self.weights, groups=busy)
        found.add("expert products", down)
        found.add("expert sum", k.stream("broadcast", tokens, hidden, reads=network.chosen))
        if network.shared_width:
            self._network("shared ", network, network.shared_width)
            found.add("expert sum", k.stream("elementwise", tokens, hidden, reads=2))

    def _network(self, prefix: str, network: FeedForward, width: int) -> None:
        tokens = self.done.tokens
        wide = k.product(tokens, network.inputs * width, self.hidden, self.weights)
        self.found.add(f"{prefix}up and gate" if network.gated else f"{prefix}up", wide)
        self.found.add("activation", _activation(network, tokens, width))
        down = k.product(tokens, self.hidden, width, self.weights)
        self.found.add(f"{prefix}down", down)


def keys_per_query(attention: Attention, done: Pass) -> float:
    """Return the number of keys per query, as if there were no causal mask.

    Half of the scores are computed (see `causal_work`), so the number is twice the mean number of
    keys. In a prompt of c tokens with a window w, the first w queries see w / 2 keys on average and
    the others w: w · (1 - w / 2c) on average, twice that is w · (2 - w / c).
    """
    kept = kept_tokens(attention, done.context)
    if done.is_decode or kept == done.context:
        return float(kept)
    return kept * (2.0 - kept / done.context)


def causal_work(attention: Attention, done: Pass) -> float:
    """Return the share of the queries' scores with `keys_per_query` keys that are computed."""
    if done.is_decode:
        return 1.0
    if kept_tokens(attention, done.context) < done.context:
        return 0.5
    return causal_share(done.queries, done.context)


def _activation(network: FeedForward, rows: float, width: float) -> Kernel:
    if network.gated:
        return k.gate(rows, width)
    return k.stream("costly_activation", rows, width, flops=8.0)


# Experts.


def busy_experts(network: FeedForward, tokens: int) -> float:
    """Return the expected number of experts that receive a token.

    experts · (1 - (1 - chosen / experts) ^ tokens), if tokens choose independently and uniformly.
    Real routers prefer some experts, so real passes use fewer.
    """
    share = network.chosen / network.experts
    return network.experts * (1.0 - (1.0 - share) ** tokens)


# Passes of `generate` of transformers: one kernel per operation.
#
# An RMS norm takes eight kernels (a layer norm is one in PyTorch), rotary positions take five for
# queries and five for keys, and each product has its own. A decode step that appends to the cache
# rewrites all of it. Attention is the fused kernel of `scaled_dot_product_attention`.

WIDENED_ROWS = 50
"""Number of rows above which kernels for integer weights (exllama v2, which transformers calls)
convert a matrix to half precision in memory before they multiply."""
ONCE = 24
"""Small kernels of a pass outside the layers: masks, tables of cosines and sines, and the logits
processing of `generate`."""


def eager_kernels(decoder: Decoder, done: Pass, weights: WeightFormat) -> KernelList:
    """Return the kernels of a pass in `generate`; for the arguments see `engine_kernels`."""
    found = KernelList()
    _launch_embedding(found, decoder, done)
    found.add("once a pass", k.stream("elementwise", done.batch, 1), ONCE)
    for layer in decoder.layers:
        _EagerLayer(found, decoder, done, weights).launch(layer)
    _launch_eager_head(found, decoder, done)
    return found


def _launch_eager_head(found: KernelList, decoder: Decoder, done: Pass) -> None:
    rows, width = done.batch * done.scored, decoder.embedding_width or decoder.hidden
    _launch_norm(found, rows, decoder.hidden, has_bias=decoder.norm_bias)
    if width != decoder.hidden:
        found.add("head", k.product(rows, width, decoder.hidden, PLAIN))
    found.add("head", k.product(rows, decoder.vocabulary, width, PLAIN))
    found.add("sampling", k.stream("cast", rows, decoder.vocabulary, out_bytes=k.FULL))
    found.add("sampling", k.reduction(done.batch, decoder.vocabulary, in_bytes=k.FULL))


def _launch_norm(found: KernelList, rows: float, width: float, *, has_bias: bool) -> None:
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
            _launch_norm(self.found, tokens, hidden, has_bias=self.norm_bias)
        self._attention(layer.attention)
        self._feed_forward(layer.feed_forward)
        self.found.add("residual", k.stream("elementwise", tokens, hidden, reads=2), 2)
        sums = 1 if layer.parallel else 2
        self.found.reduced_bytes += [float(k.HALF * tokens * hidden)] * sums

    def _attention(self, a: Attention) -> None:
        tokens, done, found = self.done.tokens, self.done, self.found
        for p in a.projections(self.hidden):
            self._project(p.name, tokens, p.out, p.inner)
        if a.latent is not None:
            for rank in (a.latent.query_rank, a.latent.rank):
                if rank:
                    _launch_norm(found, tokens, rank, has_bias=False)
            found.add("keys side by side", k.stream("concat", tokens, a.heads * a.head_dim), 2)
        if a.normed:
            for heads in (a.heads, a.kv_heads):
                _launch_norm(found, tokens * heads, a.head_dim, has_bias=False)
        if a.rotary:
            turned = a.latent.rotary if a.latent else a.head_dim
            for heads in (a.heads, 1 if a.latent else a.kv_heads):
                self._rotate(heads * turned)
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

    def _rotate(self, width: int) -> None:
        """Launch rotary positions: x · cos + (-x₂, x₁) · sin."""
        tokens, found = self.done.tokens, self.found
        found.add("positions", k.stream("broadcast", tokens, width, repeated=True), 2)
        found.add("positions", k.stream("elementwise", tokens, width / 2))
        found.add("positions", k.stream("concat", tokens, width))
        found.add("positions", k.stream("elementwise", tokens, width, reads=2))

    def _feed_forward(self, network: FeedForward) -> None:
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
