"""`dippm measure`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from dippm.cli import options
from dippm.cli.output import errors_reported, print_json, print_warnings, progress_shown

if TYPE_CHECKING:
    from dippm.estimate.prediction import Prediction
    from dippm.measure.measurement import Measurement
    from dippm.measure.protocol import Regime
    from dippm.measure.verification import OperatorVerification, Verification


def measure(
    model: options.Source,
    batch: options.Batch = 1,
    input: options.Input = None,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            "-d",
            help="Device to measure on: cuda:0, ... or cpu. Default: the first GPU, else the CPU.",
        ),
    ] = None,
    precision: options.Precision = "fp32",
    mode: options.Mode = "eager",
    phase: options.Phase = "inference",
    channels_last: options.ChannelsLast = False,
    host: Annotated[
        str | None,
        typer.Option("--host", help="With --compare: host of the prediction, see `dippm predict`."),
    ] = None,
    context_mb: Annotated[
        str | None,
        typer.Option(
            "--context-mb", help="With --compare: context of the prediction, see `dippm predict`."
        ),
    ] = None,
    warm_up: Annotated[
        int, typer.Option("--warm-up", min=1, help="Number of untimed steps before the timed ones.")
    ] = 5,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Number of timed steps.")] = 30,
    energy_window_s: Annotated[
        float,
        typer.Option(
            "--energy-window-s",
            min=0,
            help="Duration of the energy measurement in s; 0: no energy.",
        ),
    ] = 2.0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also predict, and show the error of the prediction.")
    ] = False,
    operators: Annotated[
        int,
        typer.Option(
            "--operators", min=0, help="Also list the N slowest operators, measured and predicted."
        ),
    ] = 0,
    checkpoint: options.CheckpointName = None,
    trust: options.Trust = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Run a model on this machine and measure latency, memory and energy.

    Measured values are always printed. Exit code 1 if the requested comparison or list of operators
    is absent; the reason is printed.
    """
    if not compare and (host is not None or context_mb is not None):
        raise typer.BadParameter("--host and --context-mb require --compare")
    with errors_reported(as_json=json), progress_shown(quiet=quiet, still=True):
        from dippm.errors import DippmError
        from dippm.estimate.conditions import precision_of
        from dippm.measure.measurement import measure_model
        from dippm.measure.protocol import Regime, Settings

        regime = Regime(precision_of(precision), cast(Any, mode), cast(Any, phase), channels_last)
        prediction, reason = None, ""
        if compare:  # first: fail before the measurement if a comparison is impossible
            prediction, reason = _prediction_to_compare(
                model,
                input=input,
                batch=batch,
                device=device,
                regime=regime,
                checkpoint=checkpoint,
                trust=trust,
                host=host,
                context_mb=context_mb,
            )
            if reason:
                print_warnings([f"no comparison: {reason}; measuring only"])
        measured = measure_model(
            model,
            input=input,
            batch=batch,
            device=device,
            regime=regime,
            settings=Settings(warm_up, repeat, energy_window_s=energy_window_s),
            trust=trust,
        )
        answer: Measurement | Verification = measured
        if compare:
            answer = _compare(prediction, measured, reason)
            reason = answer.reason
        parts, no_parts = None, ""
        if operators:
            try:
                parts = _operators(model, measured, input=input, checkpoint=checkpoint, trust=trust)
            except DippmError as error:  # the measurement is an answer by itself
                no_parts = error.message
    document: dict[str, Any] = answer.to_dict()
    if operators:
        document["operators"] = parts and parts.to_dict()
        document["absent"] |= {"operators": no_parts} if no_parts else {}
    if json:
        print_json("measure-compare" if compare else "measure", document)
    else:
        from dippm.show.report.console import console, operator_check_table, print_text

        print_text(str(answer))
        if parts:
            console().print(operator_check_table(parts, operators))
            print_text(str(parts))
        if no_parts:
            print_text(f" operators absent: {no_parts}")
    if reason or no_parts:
        raise typer.Exit(1)


def _prediction_to_compare(
    model: str, *, checkpoint: str | None, **asked: Any
) -> tuple[Prediction | None, str]:
    """Return the prediction to compare a measurement with, or the reason why there is none.

    Raises:
        DippmError: if the named checkpoint or the model is not valid.
    """
    from dippm.errors import DippmError
    from dippm.estimate import pretrained
    from dippm.measure.sessions import runtime_of
    from dippm.measure.verification import why_other_framework

    runtime = runtime_of(model)
    if checkpoint:
        pretrained.find(checkpoint)
    try:
        prediction = _predict(model, checkpoint=checkpoint, **asked)
    except DippmError as error:
        if checkpoint:
            raise
        return None, error.message
    return prediction, why_other_framework(prediction, runtime)


def _compare(prediction: Prediction | None, measured: Measurement, reason: str) -> Verification:
    from dippm.errors import DippmError
    from dippm.measure.verification import not_compared, verify

    if prediction is None or reason:
        return not_compared(measured, reason, prediction)
    try:
        return verify(prediction, measured)
    except DippmError as error:
        return not_compared(measured, error.message, prediction)


def _operators(
    model: str, measured: Measurement, *, input: str | None, checkpoint: str | None, trust: bool
) -> OperatorVerification:
    """Join the kernels of a measurement with the model's graph, and predict its operators."""
    from dippm.api import predict
    from dippm.errors import DippmError
    from dippm.measure.verification import verify_operators
    from dippm.model.convert import read_graph

    graph = read_graph(model, input=input, trust=trust)
    regime, columns = measured.regime, measured.columns
    try:
        if columns["device_kind"] == "cpu":
            _check_known(measured.device)
        costs = predict(
            graph,
            batch=measured.batch,
            device=measured.device,
            mig=columns["mig_profile"],
            checkpoint=checkpoint,
            precision=regime.precision,
            mode=regime.mode,
            timer="kernel",
            channels_last=regime.channels_last,
            phase=regime.phase,
        ).operators
    except DippmError as error:  # measured operators are an answer by themselves
        return verify_operators(measured, graph, reason=error.message)
    reason = "" if costs else "the checkpoint predicts no operators"
    return verify_operators(measured, graph, costs, reason=reason)


def _predict(
    model: str,
    *,
    input: str | None,
    batch: int,
    device: str | None,
    regime: Regime,
    checkpoint: str | None,
    trust: bool,
    host: str | None,
    context_mb: str | None,
) -> Prediction:
    """Predict the model for the device that it will be measured on."""
    from dippm.api import predict
    from dippm.measure.provenance import machine
    from dippm.measure.subject import device_of

    here = machine(device_of(device))
    if here["device_kind"] == "cpu":
        _check_known(here["device"])
    return predict(
        model,
        input=input,
        batch=batch,
        device=here["device"],
        mig=here["mig_profile"],
        checkpoint=checkpoint,
        precision=regime.precision,
        mode=regime.mode,
        channels_last=regime.channels_last,
        phase=regime.phase,
        trust=trust,
        host=host,
        context_mb=context_mb,
    )


def _check_known(cpu: str) -> None:
    from dippm.devices import all_cpus
    from dippm.errors import ConditionsError

    names = [known.name for known in all_cpus()]
    if cpu not in names:
        raise ConditionsError(
            f"no checkpoint was trained on this machine's CPU, {cpu}",
            f"Measure without --compare; CPUs that can be predicted: {', '.join(names)}. The "
            "README says how to train a checkpoint on measurements of your own.",
        )
