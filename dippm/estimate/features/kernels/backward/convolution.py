"""Gradients of convolutions: a convolution for the images, one for the weights."""

from __future__ import annotations

from math import prod

from dippm.estimate.features.kernels.backward.gradients import Gradients
from dippm.estimate.features.kernels.backward.tape import Step
from dippm.estimate.features.kernels.layouts import image_strides, images_last


def convolution(g: Gradients, step: Step, gradient: int) -> None:
    """Launch both; each does the operations of the forward pass.

    Both read the gradient, in the order of the images; autograd keeps images and weights.
    """
    run, source, weight = g.run, step.call.inputs[0], step.call.inputs[1]
    forward = run.kernels[step.kernel]
    image, filters = g.original(source), g.kept(weight)
    shape, made_shape = run.tensor(source).shape, run.tensor(step.call.outputs[0]).shape
    gradient = g.dense(gradient, image_strides(run, image, made_shape))
    image = g.dense(image, image_strides(run, image, shape))
    width = forward.out_bytes
    plain = forward._replace(
        weight_bytes=0.0, images_last=images_last(run, image), sources=(), strided=False
    )
    pixels = float(shape[0] * prod(shape[2:]))
    if g.wants(source):
        kernel = plain._replace(
            read_bytes=float(width * run.tensor(gradient).size),
            weight_bytes=float(width * run.tensor(filters).size),
            write_bytes=float(width * prod(shape)),
            m=pixels,
            n=forward.k / forward.window,
            k=forward.n * forward.window,
        )
        strides = image_strides(run, image, shape)
        with g.towards(source):
            made = g.launch(kernel, (gradient, filters), shape, width, strides)
        g.give(source, made)
    if g.wants(weight):
        sizes = run.tensor(weight).shape
        kernel = plain._replace(
            read_bytes=float(width * (run.tensor(gradient).size + run.stored(image))),
            write_bytes=float(width * prod(sizes)),
            m=forward.k,
            n=forward.n,
            k=forward.m,
        )
        with g.towards(weight):
            made = g.launch(kernel, (gradient, image), sizes, width)
        g.give(weight, made)
    for bias in step.call.inputs[2:3]:
        g.give(bias, gradient)
