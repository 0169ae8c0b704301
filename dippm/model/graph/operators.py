"""The operator table: canonical names, their spellings by exporters, costs and classes.

The single source of truth about operators: names in the dialects, classes of node features and
kernels, and the effect of autocast all come from a row. A node's MACs depend on its attributes and
activation shapes alone, so `ModelGraph.at_batch` computes costs without the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dippm.model.graph import macs
from dippm.model.graph.macs import MacsFormula

Category = Literal[
    "compute", "recurrent", "pool", "norm", "activation", "elementwise", "reduction",
    "copy", "view", "other",
]  # fmt: skip
Autocast = Literal["lower", "float32", "promote"]


@dataclass(frozen=True, slots=True)
class Operator:
    """Properties of one canonical operator.

    Attributes:
        name: canonical name.
        category: "view" operators move no data; "copy" operators only move data.
        feature: class in the node features, one of `OPERATOR_CLASSES` of `dippm.estimate.features`.
        kernel: class of its kernel, one of `KERNEL_CLASSES` of `dippm.estimate.features`;
            "convolution" if its attributes decide, "none" if it launches no kernel.
        spellings: its names in the dialects, folded (see `fold_name`); the
            canonical name is always one of them.
        attributes: the attributes that a node of this operator keeps.
        flops_per_output: element-wise operations per element of the first result (of the first
            activation for reductions and pools), in addition to 2 · MACs.
        macs: formula of its MACs from attributes, input and output shapes; None if always 0.
        autocast: effect of mixed precision: "lower" casts the arguments to half, "float32" widens
            them, "promote" uses the widest.
        commutative: whether the order of the arguments does not matter.
        along_axis: whether it mixes elements along an axis, although element-wise by category.
    """

    name: str
    category: Category
    feature: str = ""
    kernel: str = ""
    spellings: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    flops_per_output: int = 0
    macs: MacsFormula | None = None
    autocast: Autocast = "promote"
    commutative: bool = False
    along_axis: bool = False


_CONV = ("kernel", "strides", "padding", "dilation", "groups", "in_channels", "out_channels")
_OPERAND = ("parameter",)
"""1 if one operand is a parameter tensor: autocast widens the result to its float32."""
_POOL = ("kernel", "strides", "padding")
_RNN = ("input_size", "hidden_size", "layers", "directions", "steps", "projection_size")
_FFTS = ",".join(
    f"fft{kind}{axes}"
    for axes in ("", "2", "n")
    for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    if (kind, axes) not in (("rfft", "2"), ("irfft", "2"))
)
_GRADIENTS = ",".join(
    f"{name}backward"
    for name in (
        "elu gelu hardshrink hardsigmoid hardswish hardtanh leakyrelu logit logsigmoid mish "
        "prelukernel rreluwithnoise sigmoid silu softplus softshrink tanh threshold nativedropout "
        "infinitelydifferentiablegelu binarycrossentropy huberloss mseloss smoothl1loss "
        "softmarginloss"
    ).split()
)
"""Element-wise functions, each an operator of PyTorch that reads one element per argument."""
_FACTORISED = (
    "inverse,det,logdet,slogdet,svd,qr,cholesky,choleskysolve,choleskyinverse,geqrf,lusolve,"
    "triangularsolve,linalginv,linalginvex,linalgsolve,linalgsolveex,linalgdet,linalgslogdet,"
    "linalgcholesky,linalgcholeskyex,linalgqr,linalgsvd,linalgsvdvals,linalgeigh,linalgeigvalsh,"
    "linalgeig,linalgeigvals,linalgpinv,linalgmatrixexp,linalglu,linalglufactor,linalglusolve,"
    "linalglstsq,linalgsolvetriangular,linalgcond,linalgmatrixrank"
)
"""Factorisations of small matrices: serial library code, never measured."""
GUESSED = {
    "factorise": "factorisations and inverses of matrices were priced at a guess, 64 operations "
    "for each number: nothing of the kind was measured"
}
"""Notes on operators whose cost cannot be counted, by canonical name."""
PARTIAL_WRITES = ("slicescatter", "selectscatter", "stridedslicescatter", "diagonalscatter")
"""Spellings of putting a part back into the tensor that it is a view of, ``y[:, :2] = x``."""
_HEADS = ("heads", "query_length", "key_length", "head_dim", "value_dim", "causal")


def _rows(
    entries: str, category: Category, feature: str, kernel: str, flops: int = 0, **columns: Any
) -> list[Operator]:
    """Return rows with shared columns; each entry is a name, or "name=spelling,spelling"."""
    rows = []
    for entry in entries.split():
        name, _, spelled = entry.partition("=")
        spellings = tuple(spelled.split(",")) if spelled else ()
        rows.append(
            Operator(name, category, feature, kernel, spellings, flops_per_output=flops, **columns)
        )
    return rows


def _products(
    entries: str, feature: str, kernel: str, flops: int = 0, **columns: Any
) -> list[Operator]:
    columns = {"autocast": "lower", **columns}
    return _rows(entries, "compute", feature, kernel, flops, **columns)


def _layers(entry: str, gates: int) -> list[Operator]:
    formula = macs.recurrent(gates)
    columns: dict[str, Any] = {"attributes": _RNN, "macs": formula, "autocast": "lower"}
    return _rows(entry, "recurrent", "recurrent", "recurrent", **columns)


def _pools(entries: str, kernel: str, **columns: Any) -> list[Operator]:
    return _rows(entries, "pool", "pool", kernel, 1, **columns)


def _norms(entries: str, kernel: str, flops: int, **columns: Any) -> list[Operator]:
    return _rows(entries, "norm", "normalisation", kernel, flops, **columns)


def _activations(entries: str, flops: int, **columns: Any) -> list[Operator]:
    columns = {"feature": "activation", "kernel": "costly_activation", **columns}
    return _rows(entries, "activation", flops=flops, **columns)


def _elementwise(entries: str, flops: int, **columns: Any) -> list[Operator]:
    columns = {"kernel": "elementwise", **columns}
    return _rows(entries, "elementwise", "elementwise", flops=flops, **columns)


def _reductions(entries: str, flops: int = 1, **columns: Any) -> list[Operator]:
    columns = {"feature": "reduction", "attributes": ("axes",), **columns}
    return _rows(entries, "reduction", kernel="reduction", flops=flops, **columns)


def _copies(entries: str, kernel: str, feature: str = "movement", **columns: Any) -> list[Operator]:
    return _rows(entries, "copy", feature, kernel, **columns)


def _views(entries: str, **columns: Any) -> list[Operator]:
    return _rows(entries, "view", "movement", "copy", **columns)


_OPERATORS: list[Operator] = [
    *_products("conv1d conv2d=conv,convolution,convinteger,qlinearconv conv3d",
               "conv", "convolution",
               attributes=_CONV, macs=macs.convolution),
    *_products(
        "conv_transpose=conv1dtranspose,conv2dtranspose,conv3dtranspose,convtranspose1d,"
        "convtranspose2d,convtranspose3d",
        "conv_transpose", "convolution", attributes=_CONV, macs=macs.transposed_convolution),
    *_products("deform_conv2d=deformconv", "conv", "other", 8, attributes=_CONV,
               macs=macs.convolution, autocast="promote"),
    *_products("dense=linear", "dense", "gemm",
               attributes=("in_features", "out_features"), macs=macs.dense),
    *_products("batch_matmul=matmul,batchmatmulv2,bmm,mm,mv,gemm,addmm,baddbmm,"
               "matmulinteger,qlinearmatmul,qgemm,intmm,weightint8packmm",
               "batch_matmul", "batched_gemm",
               attributes=("m", "n", "k"), macs=macs.batched_product),
    *_products(
        "attention=scaleddotproductattention,scaleddotproductflashattention,attentionbias",
        "attention", "attention", attributes=_HEADS, macs=macs.attention),
    *_layers("lstm=quantizedlstm,dynamicquantizelstm,cudnnlstm,lstmcell", 4),
    *_layers("gru=grucell", 3),
    *_layers("rnn=rnntanh,rnnrelu,simplernn,rnntanhcell,rnnrelucell", 1),

    *_pools(
        "max_pool=maxpool1d,maxpool2d,maxpool3d,maxpoolv2,maxpool3dv2,maxpool1dwithindices,"
        "maxpool2dwithindices,maxpool3dwithindices "
        "avg_pool=averagepool,avgpool1d,avgpool2d,avgpool3d,avgpoolv2,avgpool3dv2 "
        "lp_pool=lppool1d,lppool2d,lppool3d,lppoolv2,lppool3dv2",
        "pool", attributes=_POOL),
    *_pools("global_avg_pool=globalaveragepool,globalavgpool global_max_pool=globalmaxpool",
            "reduction"),

    *_norms("batch_norm=batchnormalization,fusedbatchnorm,fusedbatchnormv2,fusedbatchnormv3",
            "batch_norm", 2),
    *_norms(
        "layer_norm=layernormalization,nativelayernorm "
        "rms_norm=rmsnormalization,simplifiedlayernormalization",
        "layer_norm", 6, attributes=("normalized_size",), autocast="float32"),
    *_norms("instance_norm=instancenormalization", "group_norm", 6,
            attributes=("normalized_size",), autocast="float32"),
    *_norms("group_norm=nativegroupnorm,groupnormalization", "group_norm", 6,
            attributes=("normalized_size", "groups"), autocast="float32"),
    *_norms("local_response_norm=lrn,localresponsenorm", "layer_norm", 9, autocast="float32"),
    *_norms("l2_normalize=renorm", "layer_norm", 3, attributes=("axes",), autocast="float32"),

    *_activations("softmax=hardmax,safesoftmax log_softmax", 4, feature="softmax", kernel="softmax",
                  attributes=("axis",), autocast="float32", along_axis=True),
    *_activations("relu leaky_relu=rrelu,rreluwithnoise prelu threshold=thresholdedrelu,shrink",
                  1, kernel="activation"),
    *_activations("relu6 clip=clamp,hardtanh,clampmin,clampmax,clipbyvalue", 2,
                  kernel="activation"),
    *_activations("hard_sigmoid hard_swish sigmoid tanh elu selu celu silu=swish", 4),
    *_activations("gelu=gelutanh,geluerf mish softsign log_sigmoid=logsigmoidforward", 8),
    *_activations("softplus", 8, autocast="float32"),
    *_activations("hardshrink softshrink", 1, kernel="activation"),
    *_activations("glu", 5, along_axis=True),

    *_elementwise("add=addv2,biasadd,addn multiply=mul,mulnonan", 1,
                  attributes=_OPERAND, commutative=True),
    *_elementwise("subtract=sub,rsub,squareddifference divide=div,realdiv,divnonan,truediv", 1,
                  attributes=_OPERAND),
    *_elementwise(
        "maximum minimum equal=eq not_equal=ne logical_and logical_or logical_xor bitwise_and "
        "bitwise_or bitwise_xor",
        1, commutative=True),
    *_elementwise(
        "floor_divide=floordiv mod=floormod remainder=truncatemod fill_like abs neg=negative "
        "sign=sgn "
        "floor ceil round trunc square greater=gt greater_equal=ge less=lt less_equal=le "
        "logical_not bitwise_not bit_shift=leftshift,rightshift,lshift,rshift,bitwiseleftshift,"
        "bitwiserightshift where=select,selectv2 is_nan is_inf is_finite "
        "masked_fill",
        1),
    *_elementwise("reciprocal=inv", 1, autocast="float32"),
    *_elementwise("cast=astype,to,tocopy,typeas,float", 1, kernel="cast"),
    *_elementwise(
        "quantize=fakequantizepertensoraffine,fakequantizeperchannelaffine,quantizelinear,"
        "quantizepertensor,quantizeperchannel "
        "dequantize=dequantizelinear,dequantizepertensor,dequantizeperchannel",
        2, kernel="cast"),
    *_elementwise("one_hot bucketize=searchsorted", 1, along_axis=True),
    *_elementwise("cross=linalgcross", 5, along_axis=True),
    *_elementwise("affine_grid=affinegridgenerator", 6, along_axis=True),
    *_elementwise(
        "frac nan_to_num heaviside fmod copysign isclose",
        1),
    *_elementwise("log10 exp2 hypot complex=polar", 4),
    *_elementwise(
        "sinc xlogy logit=speciallogit log_add_exp=logaddexp2 "
        "gamma=polygamma,mvlgamma,specialmultigammaln "
        "bessel=i0,i0e,speciali0,speciali0e,speciali1,speciali1e",
        8),
    *_elementwise("multiply_add=addcdiv,addcmul lerp", 2),
    *_elementwise("rotary_embedding", 3),
    *_elementwise("activation_gradient=" + _GRADIENTS, 4),
    *_elementwise("log2 log1p expm1 sqrt", 4),
    *_elementwise("power=pow exp log rsqrt", 4, autocast="float32"),
    *_elementwise(
        "erf erfc sin cos tan asin acos atan atan2=angle sinh cosh asinh acosh atanh "
        "erfinv=specialndtri lgamma "
        "digamma",
        8),

    *_reductions(
        "reduce_mean=mean reduce_max=max,amax reduce_min=min,amin reduce_variance=var,variance "
        "reduce_std=std reduce_logsumexp=logsumexp,reducelogsum reduce_any=any reduce_all=all "
        "argmax argmin"
    ),
    *_reductions(
        "reduce_sum=countnonzero,nansum,sum,sumdimintlist reduce_norm=linalgnorm,"
        "linalgmatrixnorm,frobeniusnorm,norm,linalgvectornorm,reducel1,reducel2,reducesumsquare "
        "reduce_prod=prod cumsum cumprod",
        autocast="float32"),
    *_reductions("cummax=cummin,logcumsumexp histogram=histc,bincount"),
    *_reductions("distance=cdist", 8, attributes=("width",)),
    *_reductions("top_k=topkv2 sort=median,nanmedian,kthvalue,mode,quantile,nanquantile,msort "
                 "argsort", 8, feature="indexing", attributes=("axis",)),

    *_copies("concat=concatv2,concatenate,cat,stack", "concat", attributes=("axis",)),
    *_copies("transpose=t,numpyt,permutedims,permute,swapaxes", "copy",
             attributes=("permutation", "copies")),
    *_copies("embedding", "gather", "indexing", attributes=("rows", "width")),
    *_copies("gather=take,takealongdim,gathernd,gatherelements,index,indexselect,indextensor,"
             "compress",
             "gather",
             "indexing"),
    *_copies(
        "scatter=scatterreduce,indexadd,indexcopy,indexfill,indexreduce,put,diagonalscatter,"
        "maxunpool2d,maxunpool3d,scatternd,scatterelements,scatteradd,indexput,slicescatter,"
        "selectscatter,"
        "maskedscatter,maxunpool,tensorscatteradd,tensorscatterupdate,tensorscattermax,"
        "tensorscattermin,"
        "unsortedsegmentsum,unsortedsegmentmax,unsortedsegmentmin,unsortedsegmentprod,segmentsum,"
        "segmentmean,segmentmax,segmentreduce,segmentmin,segmentprod,dynamicstitch,paralleldynamicstitch",
        "gather", "indexing"),
    *_copies("diagonal=diagembed", "copy"),
    *_copies("nonzero", "copy", "indexing"),
    *_copies(
        "pad=padv2,mirrorpad,constantpadnd,centercroppad roll=fftshift,fftfftshift,fftifftshift "
        "tile repeat=repeatinterleave "
        "flip=rot90,fliplr,flipud,reverse,reversev2,reversesequence space_to_depth=pixelunshuffle "
        "depth_to_space=pixelshuffle unfold im2col=extractimagepatches,extractvolumepatches "
        "col2im triangle=triu,tril,trilu,matrixbandpart dynamic_slice=dynamicstridedslice",
        "copy"),
    *_copies(
        "resize=upsamplebilinear2daa,upsamplebicubic2daa,resize2d,resize3d,resizebilinear,"
        "resizenearestneighbor,resizebicubic,upsample,"
        "upsamplenearest1d,upsamplenearest2d,upsamplenearest3d,upsamplebilinear2d,"
        "upsamplenearestexact1d,upsamplenearestexact2d,upsamplenearestexact3d,"
        "upsamplebicubic2d,upsamplelinear1d,upsampletrilinear3d grid_sample=gridsampler2d,"
        "gridsampler3d,gridsampler,"
        "cropandresize,imageprojectivetransformv3 roi_align=roipool,psroialign,psroipool,"
        "roialign,maxroipool",
        "resize", "resampling", flops=4, attributes=("mode",)),
    *_copies(
        "create=zero,resizeas,fftfftfreq,fftrfftfreq,arange,range,zeros,ones,"
        "full,eye,zeroslike,oneslike,fulllike,emptylike,empty,"
        "eyelike,hannwindow,hammingwindow,blackmanwindow,melweightmatrix,"
        "newzeros,newones,newfull,scalartensor,fill,constantofshape,shape,shapeof "
        "random=exponential,normal,uniform,cauchy,geometric,lognormal,randomuniformlike,"
        "randomnormallike,randn,rand,randlike,randomnormal,randomuniform,multinomial,bernoulli,"
        "randint,"
        "randomstandardnormal,statelessrandomuniformv2,statelessrandomnormalv2",
        "none"),

    *_views("reshape=viewascomplex,viewasreal,view,unsafeview,flatten,batchflatten,unflatten,"
            "squeeze,unsqueeze,expanddims",
            attributes=("copies",)),
    *_views("broadcast=broadcasttensors,meshgrid,broadcastto,expand,expandas"),
    *_views("split=splitv,chunk,splitwithsizes,tensorsplit slice=asstrided,real,imag,"
            "stridedslice,narrow",
            attributes=("axis",)),

    *_rows("einsum", "other", "batch_matmul", "other", 8, attributes=("equation",)),
    *_rows(
        "fft=" + _FFTS + ",fftc2c,istft,dft,stft,rfft,irfft,fftr2c,fftc2r,fftrfft2,fftirfft2,"
        "fft2d,ifft,ifft2d,rfft2d,irfft2d",
        "other", "reduction", "other", 8),
    *_rows("factorise=" + _FACTORISED, "other", "reduction", "other", 64),
    *_rows("moe_dispatch", "other", "elementwise", "other", 1),
]  # fmt: skip

OPERATORS: Mapping[str, Operator] = {operator.name: operator for operator in _OPERATORS}
"""Canonical operators by name."""

UNKNOWN = Operator("unknown", "other", "unknown", "other", flops_per_output=1)
"""Assumptions about an operator without a canonical name."""

FUSED_RANK = 4
"""Rank of the arguments of fused attention; with another rank its steps run one by one."""

ELEMENTWISE_CATEGORIES = ("activation", "elementwise")


def operator(name: str) -> Operator:
    """Return the table's row for a canonical name, `UNKNOWN` if there is none."""
    return OPERATORS.get(name, UNKNOWN)


def is_elementwise(name: str) -> bool:
    """Return whether every output element depends on the same element of each input only."""
    row = operator(name)
    return row.category in ELEMENTWISE_CATEGORIES and not row.along_axis


# Operator names that need no look at attributes: dialect's name → canonical name.

# A key is the operator's name without dialect prefix, in lower case and without underscores
# ("nn.leakyrelu", "aten.leaky_relu" and "onnx.LeakyRelu" are all "leakyrelu"); a key with its
# dialect ("tf.sub") wins over the bare one. Operators whose canonical form depends on attributes
# also have a reader, see `dippm.model.graph.dialects`.


_BY_DIALECT = {"image.gridsample": "grid_sample", "onnx.max": "maximum", "onnx.min": "minimum"}
"""Names that mean something else in one dialect than in the others."""


def fold_name(name: str) -> str:
    """Return a name in lower case and without underscores."""
    return name.replace("_", "").lower()


NAMES: dict[str, str] = {
    **{fold_name(name): name for name in OPERATORS},
    **{spelling: row.name for row in OPERATORS.values() for spelling in row.spellings},
    **_BY_DIALECT,
}
"""Canonical name by folded dialect name."""

_IDENTITIES = """
    identity dropout featuredropout alphadropout featurealphadropout stopgradient detach alias
    contiguous clone lift liftfresh liftfreshcopy nativedropout makegraphidentity
    checknumerics ensureshape preventgradient identityn snapshot wrapparam hintondevice
    assertmetadata requiresgrad resolveconj resolveneg conj conjphysical
"""

IDENTITIES = frozenset(_IDENTITIES.split())
"""Folded names of operators that compute nothing at inference."""


def split_name(name: str) -> tuple[str, str]:
    """Return (dialect, bare name), both folded."""
    dialect, _, bare = name.rpartition(".")
    return dialect.lower(), fold_name(bare)


def canonical_name(dialect: str, bare: str) -> str | None:
    """Return the canonical name for a folded name; None if the table has none."""
    return NAMES.get(f"{dialect}.{bare}", NAMES.get(bare))
