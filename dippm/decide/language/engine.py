"""The kernels that a serving engine launches for a pass: products side by side, fused norms.

One product makes queries, keys and values, one makes gate and up; a norm adds the residual first;
positions turn queries and keys in one kernel, another writes keys and values to the pages of the
cache; queries that share keys meet them together; experts are two grouped products. vLLM, SGLang
and TensorRT-LLM agree on this list within a kernel or two of a layer.
"""

from __future__ import annotations

from dippm.decide.language import kernels as k
from dippm.decide.language.architecture import Attention, Decoder, FeedForward, Layer
from dippm.decide.language.formats import WeightFormat
from dippm.decide.language.kernels import KernelList, Pass
from dippm.decide.language.memory import kept_tokens
from dippm.estimate.features.kernel import Kernel

PLAIN = WeightFormat("half", 2.0)


def engine_kernels(
    decoder: Decoder, done: Pass, weights: WeightFormat, *, cache_width: int = 2
) -> KernelList:
    """Return the kernels of a pass.

    Args:
        decoder: the part of the model that one GPU has.
        done: the pass.
        weights: format of the matrices of the layers.
        cache_width: bytes of an element of keys and values.
    """
    found = KernelList()
    embedded(found, decoder, done)
    for layer in decoder.layers:
        _Layer(found, decoder.hidden, done, weights, cache_width).launch(layer)
    scored(found, decoder, done)
    return found


def embedded(found: KernelList, decoder: Decoder, done: Pass) -> None:
    """Launch the lookup of tokens."""
    width = decoder.embedding_width or decoder.hidden
    found.add("embedding", k.lookup(done.tokens, width))
    if decoder.positions:
        found.add("embedding", k.lookup(done.tokens, decoder.hidden))
        found.add("embedding", k.stream("elementwise", done.tokens, decoder.hidden, reads=2))
    if width != decoder.hidden:
        found.add("embedding", k.product(done.tokens, decoder.hidden, width, PLAIN))


def scored(found: KernelList, decoder: Decoder, done: Pass) -> None:
    """Launch the last norm, the head, and the choice of the likeliest token."""
    rows, width = done.batch * done.scored, decoder.embedding_width or decoder.hidden
    found.add("norm", k.norm(rows, decoder.hidden, tensors=2))
    if width != decoder.hidden:
        found.add("head", k.product(rows, width, decoder.hidden, PLAIN))
    found.add("head", k.product(rows, decoder.vocabulary, width, PLAIN))
    found.add("sampling", k.stream("cast", rows, decoder.vocabulary, out_bytes=k.FULL))
    found.add("sampling", k.reduction(done.batch, decoder.vocabulary, in_bytes=k.FULL))


class _Layer:
    def __init__(
        self,
        found: KernelList,
        hidden: int,
        done: Pass,
        weights: WeightFormat,
        cache_width: int,
    ) -> None:
        self.found, self.hidden, self.done = found, hidden, done
        self.weights, self.cache_width = weights, cache_width

    def launch(self, layer: Layer) -> None:
        """Launch a layer."""
        tokens, hidden = self.done.tokens, self.hidden
        self.found.add("norm", k.norm(tokens, hidden, tensors=2), layer.norms)
        if layer.attention.latent is None:
            self._grouped(layer.attention)
        else:
            self._latent(layer.attention)
        self._project("output projection", hidden, layer.attention)
        self._feed(layer.feed_forward)
        sums = 1 if layer.parallel else 2
        self.found.reduced_bytes += [float(k.HALF * tokens * hidden)] * sums

    def _project(self, name: str, out: int, attention: Attention) -> None:
        inner = attention.heads * attention.value_dim
        self.found.add(name, k.product(self.done.tokens, out, inner, self.weights))

    def _grouped(self, a: Attention) -> None:
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
        keys = attended(a, done)
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
            ),
        )

    def _latent(self, a: Attention) -> None:
        """Attend to latent vectors: a step's queries go to their space, a prompt leaves it."""
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
                    attended(a, done),
                    a.head_dim,
                    read_bytes=read,
                    value_dim=a.value_dim,
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
                attended(a, done),
                narrow,
                read_bytes=read,
                value_dim=latent.rank,
            ),
        )
        leaving = k.batched_product(a.heads, done.batch, a.value_dim, latent.rank)
        found.add("latent to value", leaving)

    def _feed(self, network: FeedForward) -> None:
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
        found.add("activation", _activated(network, rows, width))
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
        self.found.add("activation", _activated(network, tokens, width))
        down = k.product(tokens, self.hidden, width, self.weights)
        self.found.add(f"{prefix}down", down)


def attended(attention: Attention, done: Pass) -> float:
    """Return how many keys a query meets, counted as if no mask were.

    A prompt of c tokens under a window w does the work of w · (2 - w / c) keys for each query: the
    triangle at its beginning is counted twice, as that of a prompt without a window is.
    """
    kept = kept_tokens(attention, done.context)
    if done.is_decode or kept == done.context:
        return float(kept)
    return kept * (2.0 - kept / done.context)


def _activated(network: FeedForward, rows: float, width: float) -> Kernel:
    if network.gated:
        return k.gate(rows, width)
    return k.stream("costly_activation", rows, width, flops=8.0)


# How many experts a pass wakes.


def busy_experts(network: FeedForward, tokens: int) -> float:
    """Return how many experts are expected to get a token, at least those of one token.

    experts · (1 - (1 - chosen / experts) ^ tokens): each token chooses for itself, all experts are
    equally likely. Real routers prefer some, so real passes wake fewer.
    """
    share = network.chosen / network.experts
    return network.experts * (1.0 - (1.0 - share) ** tokens)
