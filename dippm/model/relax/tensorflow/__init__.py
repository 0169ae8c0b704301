"""TensorFlow → Relax: functions flattened, shapes inferred, operators translated."""
