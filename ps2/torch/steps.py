"""The optimizers that servers have for dense parameters. Without PyTorch."""

# For each optimizer: its server operation, the names of its state vectors, and the names of its scalars except lr.
STEPS = {
    "sgd": ("sgd_step", (), ()),
    "momentum": ("momentum_step", ("velocity",), ("momentum",)),
    "adagrad": ("adagrad_step", ("square",), ("eps",)),
    "adam": ("adam_step", ("velocity", "square", "count"), ("beta1", "beta2", "eps")),
}
