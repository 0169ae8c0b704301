"""Names that mean the same without a look at attributes: dialect's name → canonical name.

Operators with a reader stand here too where parameters alone may run through them (`static`).

A key is the operator's name without dialect prefix, in lower case and without underscores
("nn.leakyrelu", "aten.leaky_relu" and "onnx.LeakyRelu" are all "leakyrelu"); a key with its
dialect ("tf.sub") wins over the bare one. Operators that need a closer look are in `readers`.
"""

from __future__ import annotations

_SAME = """
    relu relu6 gelu silu sigmoid tanh elu selu celu prelu mish softplus softsign threshold
    add multiply divide subtract maximum minimum power exp log log2 log1p expm1 sqrt rsqrt erf
    abs sign floor ceil round trunc square reciprocal mod remainder where equal greater less
    sin cos tan asin acos atan atan2 sinh cosh lerp roll tile repeat flip gather nonzero pad
    cumsum cumprod
"""

_OTHER = """
    leakyrelu=leaky_relu hardswish=hard_swish hardsigmoid=hard_sigmoid swish=silu
    logsigmoid=log_sigmoid mul=multiply multiplyno_nan=multiply div=divide realdiv=divide
    divnonan=divide truediv=divide sub=subtract neg=neg negative=neg pow=power erfc=erfc
    max=maximum min=minimum addv2=add biasadd=add addn=add rsub=subtract
    floordivide=floor_divide floordiv=floor_divide floormod=mod truncatemod=remainder
    notequal=not_equal greaterequal=greater_equal lessequal=less_equal ge=greater_equal
    gt=greater le=less_equal lt=less eq=equal ne=not_equal
    logicaland=logical_and logicalor=logical_or logicalxor=logical_xor logicalnot=logical_not
    bitwiseand=bitwise_and bitwiseor=bitwise_or bitwisexor=bitwise_xor bitwisenot=bitwise_not
    isnan=is_nan isinf=is_inf isfinite=is_finite select=where selectv2=where
    maskedfill=masked_fill onehot=one_hot inv=reciprocal tensorscatteradd=scatter
    cast=cast astype=cast to=cast tocopy=cast typeas=cast float=cast
    gathernd=gather gatherelements=gather index=gather indexselect=gather indextensor=gather
    scatternd=scatter scatterelements=scatter scatter=scatter scatteradd=scatter
    indexput=scatter slicescatter=scatter selectscatter=scatter maskedscatter=scatter
    repeatinterleave=repeat reverse=flip reversev2=flip
    depthtospace=depth_to_space pixelshuffle=depth_to_space
    spacetodepth=space_to_depth pixelunshuffle=space_to_depth
    im2col=im2col col2im=col2im unfold=unfold gridsample=grid_sample gridsampler=grid_sample
    triu=triangle tril=triangle trilu=triangle matrixbandpart=triangle
    arange=create range=create zeros=create ones=create full=create eye=create
    zeroslike=create oneslike=create fulllike=create emptylike=create empty=create
    newzeros=create newones=create newfull=create scalartensor=create fill=create
    randn=random rand=random randomnormal=random randomuniform=random multinomial=random
    bernoulli=random randint=random
    dynamicstridedslice=dynamic_slice constantofshape=create shape=create shapeof=create
    deformconv2d=deform_conv2d fft=fft rfft=fft irfft=fft fftr2c=fft fftc2r=fft
    fftrfft2=fft fftirfft2=fft
    addcmul=multiply_add
    linalgvectornorm=reduce_norm norm=reduce_norm
    batchnorm=batch_norm layernorm=layer_norm mean=reduce_mean sum=reduce_sum var=reduce_variance
    std=reduce_std clip=clip clamp=clip clampmin=clip clampmax=clip softmax=softmax
    matmul=batch_matmul linear=dense concat=concat cat=concat stack=concat take=gather
    embedding=embedding einsum=einsum conv2d=conv2d upsamplebicubic2d=resize resize2d=resize
    upsamplebilinear2d=resize upsamplenearest2d=resize squareddifference=subtract topk=top_k
"""

NAMES: dict[str, str] = {
    **{name.replace("_", ""): name for name in _SAME.split()},
    **dict(pair.split("=", 1) for pair in _OTHER.split()),
    "image.gridsample": "grid_sample",
    "tf.max": "reduce_max",
    "tf.min": "reduce_min",
    "aten.max": "reduce_max",
    "aten.min": "reduce_min",
    "aten.mean": "reduce_mean",
    "max": "reduce_max",
    "min": "reduce_min",
    "onnx.max": "maximum",
    "onnx.min": "minimum",
}
"""Canonical name by folded dialect name."""

_IDENTITIES = """
    identity dropout featuredropout alphadropout featurealphadropout stopgradient detach alias
    contiguous clone lift liftfresh liftfreshcopy nativedropout makegraphidentity
    checknumerics ensureshape preventgradient identityn snapshot wrapparam hintondevice
    assertmetadata requiresgrad resolveconj resolveneg
"""

IDENTITIES = frozenset(_IDENTITIES.split())
"""Folded names of operators that compute nothing at inference."""


def fold(name: str) -> tuple[str, str]:
    """Return (dialect, bare name), both in lower case and without underscores."""
    dialect, _, bare = name.rpartition(".")
    return dialect.lower(), bare.replace("_", "").lower()


def canonical_name(dialect: str, bare: str) -> str | None:
    """Return the canonical name for a folded name; None if the table has none."""
    return NAMES.get(f"{dialect}.{bare}", NAMES.get(bare))
