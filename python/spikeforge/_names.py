"""Names of surrogates in other libraries."""

# SpikingJelly's class name: the name in this library, and the attributes with its parameters, in this library's order.
SPIKINGJELLY: dict[str, tuple[str, tuple[str, ...]]] = {
    "Sigmoid": ("sigmoid", ("alpha",)), "ATan": ("atan", ("alpha",)),
    "PiecewiseQuadratic": ("piecewise_quadratic", ("alpha",)), "PiecewiseExp": ("piecewise_exp", ("alpha",)),
    "SoftSign": ("soft_sign", ("alpha",)), "SuperSpike": ("super_spike", ("alpha",)), "Erf": ("erf", ("alpha",)),
    "PiecewiseLeakyReLU": ("piecewise_leaky_relu", ("w", "c")), "S2NN": ("s2nn", ("alpha", "beta")),
    "QPseudoSpike": ("q_pseudo_spike", ("alpha",)), "LeakyKReLU": ("leaky_k_relu", ("leak", "k")),
    "FakeNumericalGradient": ("fake_numerical_gradient", ("alpha",)),
    "LogTailedReLU": ("log_tailed_relu", ("alpha",)), "NonzeroSignLogAbs": ("nonzero_sign_log_abs", ("alpha",)),
    "SquarewaveFourierSeries": ("squarewave_fourier", ("n", "T_period")), "Rect": ("rect", ("alpha",)),
    "DeterministicPass": ("straight_through", ()),
}  # fmt: skip
