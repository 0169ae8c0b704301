"""The kernels that a serving engine launches for a pass: merged products, fused norms.

One product makes queries, keys and values, and one makes gate and up; a norm adds the residual
first; one kernel applies rotary positions, and another writes keys and values to the paged cache;
attention handles the queries of a key-value group together; experts are two grouped products. vLLM,
SGLang and TensorRT-LLM agree with this list within a kernel or two per layer.
"""

from __future__ import annotations

from dippm.decide.language import kernels as k
from dippm.decide.language.architecture import Attention, Decoder, FeedForward, Layer
from dippm.decide.language.formats import WeightFormat
from dippm.decide.language.kernels import KernelList, Pass
from dippm.decide.language.memory import kept_tokens
from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.attention import causal_share

PLAIN = WeightFormat("half", 2.0)


def engine_kernels(
    decoder: Decoder, done: Pass, weights: WeightFormat, *, cache_width: int = 2
) -> KernelList:
    """Return the kernels of a pass.

    Args:
        decoder: the model, or the shard of one GPU.
        done: the pass.
        weights: format of the matrices of the layers.
        cache_width: bytes per element of keys and values.
    """
    found = KernelList()
    launch_embedding(found, decoder, done)
    for layer in decoder.layers:
        _EngineLayer(found, decoder.hidden, done, weights, cache_width).launch(layer)
    launch_head(found, decoder, done)
    return found


def launch_embedding(found: KernelList, decoder: Decoder, done: Pass) -> None:
    """Launch the embedding of tokens."""
    width = decoder.embedding_width or decoder.hidden
    found.add("embedding", k.lookup(done.tokens, width))
    if decoder.positions:
        found.add("embedding", k.lookup(done.tokens, decoder.hidden))
        found.add("embedding", k.stream("elementwise", done.tokens, decoder.hidden, reads=2))
    if width != decoder.hidden:
        found.add("embedding", k.product(done.tokens, decoder.hidden, width, PLAIN))


def launch_head(found: KernelList, decoder: Decoder, done: Pass) -> None:
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

    def _latent(self, a: Attention) -> None:
        """Launch latent attention: decode moves queries to the latent space, prefill leaves it."""
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
    """Return the number of keys per query, counted without a causal mask.

    A prompt of c tokens with a window w does the work of w · (2 - w / c) keys per query: the
    triangle at its beginning counts twice, like the triangle of a prompt without a window.
    """
    kept = kept_tokens(attention, done.context)
    if done.is_decode or kept == done.context:
        return float(kept)
    return kept * (2.0 - kept / done.context)


def causal_work(attention: Attention, done: Pass) -> float:
    """Return the share of the scores, with `keys_per_query` keys, that attention computes."""
    if done.is_decode:
        return 1.0
    if kept_tokens(attention, done.context) < done.context:
        return 0.5
    return causal_share(done.queries, done.context)


def _activation(network: FeedForward, rows: float, width: float) -> Kernel:
    if network.gated:
        return k.gate(rows, width)
    return k.stream("costly_activation", rows, width, flops=8.0)


# Number of experts that a pass uses.


def busy_experts(network: FeedForward, tokens: int) -> float:
    """Return the expected number of experts that get a token, at least those of one token.

    experts · (1 - (1 - chosen / experts) ^ tokens): tokens choose independently and uniformly. Real
    routers prefer some experts, so real passes use fewer.
    """
    share = network.chosen / network.experts
    return network.experts * (1.0 - (1.0 - share) ** tokens)
