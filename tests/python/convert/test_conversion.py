"""convert: spikes equal those of a loop over steps, and mean outputs approach those of the original networks."""

import copy
import io

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spikeforge

STEPS = (4, 8, 16, 32, 64)


class Own(nn.Module):
    """A module whose forward is a function of itself and x."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x, **others):
        return self.function(self, x, **others)


def residual(self, x):
    x = self.relu(self.bn1(self.conv1(x)))
    y = self.relu(self.bn2(self.conv2(x)))  # the module is called twice
    return self.linear(torch.flatten(self.relu(self.conv3(y) + F.relu(self.scale.weight).sum() * x), 1))


def sizes_and_skip(self, x):
    batch, current = x.size(0), self.conv1(x)  # the size and the current are constant, what reads them is not
    y = torch.cat([F.relu(current), 0.5 * current], 1)
    y = F.avg_pool2d(F.relu(self.conv2(y) + current), 2) + F.interpolate(current, scale_factor=0.5)
    y = F.dropout(y, training=self.training)
    return self.linear(y.view(batch, 2, y.size(1) // 2, 16).transpose(1, 2).reshape(batch, 96) / 2)


def inplace(self, x):
    y = self.conv1(x)
    z = self.conv2(F.relu(y, inplace=True))
    return (z + y).mean((2, 3))  # y is the activation here


def discarded(self, x, start=0, scale=None):
    y = self.conv1(x[:, start:])
    y.sub_(0.3)
    z = F.relu(self.conv2(y))
    z.add_(y)
    return torch.stack([z, -y], 1).sum(2).flatten(1) if scale is None else scale * z


def tied(self, x):
    y = F.relu(self.conv1(x))
    return self.conv2(F.relu(F.conv2d(y, self.conv2.weight.transpose(2, 3), padding=1))) + y


def conv(inputs, outputs=6):
    return nn.Conv2d(inputs, outputs, 3, padding=1)


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU6(), nn.Linear(20, 5)),
    "norms": lambda: nn.Sequential(
        conv(2), nn.BatchNorm2d(6), nn.ReLU(), nn.BatchNorm2d(6), nn.Dropout(), conv(6), nn.ReLU(), nn.AvgPool2d(2),
        nn.ConvTranspose2d(6, 4, 3, groups=2), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8),
        nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 5)),
    "sequences": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(2, 6, 3), nn.BatchNorm1d(6), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(6, 6, 3, stride=2),
        nn.ReLU(), nn.Linear(15, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten()),
    "max pooling": lambda: nn.Sequential(
        conv(2), nn.ReLU(), nn.MaxPool2d(2), conv(6), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(24, 5)),
    "residual": lambda: Own(residual, conv1=conv(2), bn1=nn.BatchNorm2d(6), conv2=conv(6), bn2=nn.BatchNorm2d(6), conv3=conv(6),
                            relu=nn.ReLU(inplace=True), scale=nn.PReLU(6),
                            linear=nn.Linear(6 * 64, 5)),
    "sizes and skip": lambda: Own(sizes_and_skip, conv1=conv(2), conv2=conv(12), linear=nn.Linear(6 * 16, 5)),
    "inplace": lambda: Own(inplace, conv1=conv(2), conv2=conv(6)),
    "discarded results": lambda: Own(discarded, conv1=conv(2), conv2=conv(6)),
    "tied weights": lambda: Own(tied, conv1=conv(2), conv2=conv(6)),
    "ends in relu": lambda: nn.Sequential(nn.ReLU(inplace=True), conv(2), nn.ReLU(), nn.ReLU()),
}


def network(name):
    torch.manual_seed(1)
    net = NETWORKS[name]().double().eval()
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return net.requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(8, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_output_approaches_that_of_the_network_as_one_over_the_steps(name, x):
    net = network(name)
    before, expected, data = copy.deepcopy(net.state_dict()), net(x.clone()), x.clone()
    converted = spikeforge.convert(net, data, "max")
    assert torch.equal(data, x)
    means = converted(x, steps=1024, every=True)
    errors = {steps: (means[steps - 1] - expected).abs().max().item() for steps in (8, 128, 1024)}
    assert errors[1024] < 0.012 * expected.abs().max() and 0 < errors[1024] < errors[8] / 25, errors
    assert errors[128] < errors[8] / 4, errors
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())
    torch.testing.assert_close(converted(x, steps=128), means[127])
    torch.testing.assert_close(converted(x.expand(128, *x.shape)), means[127])
    assert spikeforge.convert(net, x, "max")(x[:0], steps=3).shape == (0, *expected.shape[1:])


def test_spikes_equal_those_of_a_loop_over_steps_in_float64(x, device):
    net = network("linear")
    inputs = 3 * torch.randn(40, 4, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    converted = spikeforge.convert(copy.deepcopy(net).to(device), [(x, 0)], 95)
    thresholds, found = [], []
    for neuron in converted.network.neurons.children():
        thresholds.append(neuron.neuron.v_threshold.cpu())
        neuron.neuron.register_forward_hook(lambda module, inputs, output: found.append(output[0].cpu()))
    v, outputs, spikes = [threshold / 2 for threshold in thresholds], [], ([], [])
    for step in inputs:
        current = net[1](step.flatten(1))
        for i, layer in enumerate((net[3], net[5])):
            h = v[i] + current
            fired = (h >= thresholds[i]).double()
            v[i] = h - thresholds[i] * fired
            spikes[i].append(fired)
            current = layer(thresholds[i] * fired)
        outputs.append(current)
    torch.testing.assert_close(converted(inputs.to(device)).cpu(), torch.stack(outputs).mean(0))
    assert len(found) == 2 and all(torch.equal(got, torch.stack(wanted)) for got, wanted in zip(found, spikes))
    assert all(0.02 < got.mean() < 0.9 for got in found)


def test_layers_after_neurons_receive_spikes(x):
    for name in ("residual", "max pooling", "linear"):
        net, received = spikeforge.convert(network(name), x), []
        products = [m for m in net.network.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
        for module in products[1:]:
            module.register_forward_pre_hook(lambda module, inputs: received.append(inputs[0].unique().tolist()))
        net(x, steps=8)
        assert len(received) == len(products) - 1 and all(values == [0, 1] for values in received), name


@pytest.mark.parametrize("percent", [100, 99.9, 87.3])
@pytest.mark.parametrize("batch", [64, 20])
def test_a_threshold_is_a_percentile_of_the_activations_on_all_data(percent, batch):
    net = network("norms")
    data = torch.randn(64, 2, 8, 8, dtype=torch.float64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, torch.zeros(64)), batch)
    activations = [part(net[:i](data)) for i, part in enumerate(net) if isinstance(part, nn.ReLU)]
    wanted = [numpy.percentile(a.numpy(), percent, method="inverted_cdf") for a in activations]
    for method in {100: ["max", 100], 99.9: [99.9, "99.9%"]}.get(percent, [percent]):
        converted = spikeforge.convert(net, loader, method)
        assert [n.neuron.v_threshold.item() for n in converted.network.neurons.children()] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("levels", [1, 5, 8])
def test_qcfs_equals_the_neuron_in_as_many_steps_as_levels(levels):
    x = 2 * torch.rand(500, dtype=torch.float64) - 0.5
    net = spikeforge.qcfs(nn.Sequential(nn.ReLU()).double(), x, 60, levels=levels)
    threshold = next(net.parameters())
    threshold.data *= 1.01  # no element is at the edge
    expected = (x * levels / threshold + 0.5).floor().clip(0, levels) * threshold / levels
    y = net(x)
    torch.testing.assert_close(y, expected)
    converted = spikeforge.convert(net, x)
    torch.testing.assert_close(converted(x, steps=levels), expected)
    assert y.unique().numel() == levels + 1
    x.requires_grad_()
    of_x, of_threshold = torch.autograd.grad(net(x).sum(), (x, threshold))  # Bu et al. 2022, equation 11 and 12
    torch.testing.assert_close(of_x, ((x > 0) & (x < threshold)).double())
    inside = ((expected - x) / threshold).where((x > 0) & (x < threshold), (x >= threshold).double())
    torch.testing.assert_close(of_threshold, inside.sum())


def test_qcfs_replaces_functions_and_keeps_the_mode(x):
    net = network("residual").train()
    tuned = spikeforge.qcfs(net, x, levels=4)
    assert tuned.training and tuned.bn1.training and sum(isinstance(m, nn.ReLU) for m in tuned.modules()) == 0
    assert len([*tuned.neurons.children()]) == 3 and "levels=4" in repr(tuned)
    converted = spikeforge.convert(tuned.eval(), x, 1e-3)  # the learned thresholds, not this percentile
    learned = [part.threshold.item() for part in tuned.neurons.children()]
    assert [n.neuron.v_threshold.item() for n in converted.network.neurons.children()] == learned


def test_a_residual_network_of_torchvision_converges():
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    net, x = models.resnet18(num_classes=10).eval(), torch.randn(2, 3, 32, 32)
    converted = spikeforge.convert(net, x, "max")
    with torch.no_grad():
        expected, means = net(x), converted(x, steps=144, every=True)
    errors = [(means[steps - 1] - expected).abs().max() / expected.abs().max() for steps in (9, 36, 144)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < min(errors[0] / 5, 0.1), errors
    assert "17 ReLU run as integrate-and-fire neurons" in str(converted.report)
    assert len(converted.report.replaced) == 17 + 20 + 1 and len(converted.report.left) == 19 + 2


def test_a_converted_network_is_a_module_of_torch(x):
    net = spikeforge.convert(network("residual"), x).float()
    x = x.float()
    y = net(x, steps=8)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    for other in (copy.deepcopy(net), torch.load(buffer, weights_only=False), copy.deepcopy(net).train()):
        assert torch.equal(other(x, steps=8), y)
    other = spikeforge.convert(network("residual"), 2 * x.double()).float()
    assert not torch.equal(other(x, steps=8), y)
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x, steps=8), y)
    for dtype in (torch.float16, torch.bfloat16):
        half = copy.deepcopy(net).to(dtype)(x.to(dtype), steps=64, every=True)
        assert half.dtype == dtype
        torch.testing.assert_close(half[-1].float(), net(x, steps=64), atol=0.1, rtol=0)
    trained = copy.deepcopy(net)
    for parameter in trained.parameters():
        parameter.requires_grad_()
    trained(x, steps=4).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in trained.parameters())


def test_torch_compile_runs_a_converted_network(x):
    net = spikeforge.convert(network("max pooling"), x)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, steps=5, every=True), net(x, steps=5, every=True))


# --- a trained network -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained():
    """A CNN that reads digits, images to calibrate it, and those of the test with their labels."""
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    images, labels = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    train(net, images[:1200], labels[:1200], 6, 5e-3)
    return net.eval(), images[:1200], labels[:1200], images[1200:1500], labels[1200:1500]


def train(net, images, labels, epochs, rate):
    optimizer = torch.optim.Adam(net.train().parameters(), rate)
    for _ in range(epochs):
        for indices in torch.randperm(len(images)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(net(images[indices]), labels[indices]).backward()
            optimizer.step()
    return net.eval()


def accuracies(means, labels):
    hits = (means.argmax(-1) == labels).double().mean(-1)
    return [hits[steps - 1].item() for steps in STEPS]


@torch.no_grad()
def test_digits_are_read_as_well_as_by_the_network_and_better_than_by_spikingjelly(trained):
    net, images, _, test, labels = trained
    source = (net(test).argmax(-1) == labels).double().mean().item()
    ours = {method: accuracies(spikeforge.convert(net, images, method)(test, steps=64, every=True), labels)
            for method in ("max", 99.9)}
    assert source > 0.9 and ours["max"][-1] > source - 0.01 and min(ours[99.9]) > source - 0.03, (source, ours)
    pytest.importorskip("spikingjelly")
    from spikingjelly.activation_based import ann2snn, functional

    for method, mode in (("max", "max"), (99.9, "99.9%"), (99.9, 0.8)):
        theirs = ann2snn.FXConverter(ann2snn.RateCodingRecipe([images], mode=mode)).convert(copy.deepcopy(net))
        functional.set_step_mode(theirs, "m")
        compared = accuracies(theirs(test.expand(64, *test.shape)).cumsum(0), labels)
        assert all(a >= b - 0.004 for a, b in zip(ours[method], compared)), (mode, ours[method], compared)
        assert ours[method][0] > compared[0] + 0.1


def test_fine_tuning_with_qcfs_makes_few_steps_accurate(trained):
    net, images, targets, test, labels = trained
    torch.manual_seed(0)
    tuned = train(spikeforge.qcfs(net, images, levels=2), images, targets, 6, 2e-3)
    with torch.no_grad():
        of = {name: spikeforge.convert(n, images, "max")(test, steps=2) for name, n in (("plain", net), ("tuned", tuned))}
    plain, better = ((y.argmax(-1) == labels).double().mean().item() for y in of.values())
    assert better > plain and better > 0.9, (plain, better)


# --- wrong calls -------------------------------------------------------------------------------------------------------

RELU = nn.Sequential(nn.ReLU())
X = torch.ones(4, 3)
WRONG = {
    "a model": (lambda: spikeforge.convert(torch.relu, X), TypeError, "convert: model must be a torch.nn.Module"),
    "control flow": (lambda: spikeforge.convert(Own(lambda self, x: x if x.sum() > 0 else -x), X), TypeError, "torch.fx cannot trace a copy of Own"),
    "two inputs": (lambda: spikeforge.convert(nn.Bilinear(3, 3, 2), X), TypeError, "cannot trace a copy of Bilinear: .* missing 1 required"),
    "another type": (lambda: spikeforge.convert(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), X.double()), ValueError,
                     r"convert: the model fails for data of torch.float64 \[4, 3\]: "),
    "a view": (lambda: spikeforge.convert(Own(lambda self, x: x.view(-1).relu_().sum() * x), X - 2), ValueError,
               "relu_ changes a view of another value in place; pass inplace=False"),
    "a sum of all": (lambda: spikeforge.convert(Own(lambda self, x: x.sum().relu() + x), X), ValueError,
                     r"relu \(relu\) must return a tensor whose dimension 0"),
    "no relu": (lambda: spikeforge.convert(nn.Linear(3, 2), X), ValueError, "must call a ReLU"),
    "no data": (lambda: spikeforge.convert(RELU, []), TypeError, "convert: data must be a tensor .* but is empty"),
    "empty data": (lambda: spikeforge.convert(RELU, X[:0]), TypeError, "but is empty"),
    "None as data": (lambda: spikeforge.convert(RELU, None), TypeError, "but contains NoneType"),
    "arrays": (lambda: spikeforge.convert(RELU, [X.numpy()]), TypeError, "but contains ndarray"),
    "silent": (lambda: spikeforge.convert(RELU, -X), ValueError, r"percentile 99.9 of the activations of 0 \(ReLU\) must be finite and above 0, but is 0; pass"),
    "nan": (lambda: spikeforge.convert(RELU, X * float("nan")), ValueError, "but is nan; pass"),
    "method": (lambda: spikeforge.convert(RELU, X, "mean"), ValueError, "method must be \"max\", or a percentile .* but is 'mean'"),
    "percentile": (lambda: spikeforge.convert(RELU, X, 101), ValueError, "but is 101"),
    "flag": (lambda: spikeforge.convert(RELU, X, True), ValueError, "but is True"),
    "levels": (lambda: spikeforge.qcfs(RELU, X, levels=0), ValueError, "qcfs: levels must be a whole number above 0, but is 0"),
    "sigmoid": (lambda: spikeforge.convert(nn.Sequential(nn.ReLU(), nn.Sigmoid()), X), ValueError, r"convert: 1 \(Sigmoid\) must be affine or a max"),
    "product": (lambda: spikeforge.convert(Own(lambda self, x: x.relu() * x), X), ValueError, r"mul \(mul\) must be affine"),
    "reciprocal": (lambda: spikeforge.convert(Own(lambda self, x: 1 / x.relu()), X), ValueError, r"truediv \(truediv\) must be affine"),
    "no statistics": (lambda: spikeforge.convert(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3, track_running_stats=False)), X), ValueError,
                      r"1 \(BatchNorm1d\) must be affine"),
    "indices": (lambda: spikeforge.convert(nn.Sequential(nn.ReLU(), nn.MaxPool1d(2, return_indices=True)), X), ValueError, "MaxPool1d"),
    "neurons": (lambda: spikeforge.convert(nn.Sequential(nn.ReLU(), spikeforge.nn.LIF()), X), ValueError, r"1 \(LIF\) must be affine"),
    "batch": (lambda: spikeforge.convert(Own(lambda self, x: x.relu().transpose(0, 1)), X), ValueError, r"transpose \(transpose\) must return a tensor whose"),
    "outputs": (lambda: spikeforge.convert(Own(lambda self, x: (x.relu(), x)), X), ValueError, r"output \(None\) must return a tensor whose"),
    "steps": (lambda: spikeforge.convert(RELU, X)(X, steps=0), ValueError, "steps must be a whole number above 0, but is 0"),
    "half a step": (lambda: spikeforge.convert(RELU, X)(X, steps=1.5), ValueError, "but is 1.5"),
    "no steps": (lambda: spikeforge.convert(RELU, X)(X.expand(0, 4, 3)), ValueError, "but is 0"),
    "integers": (lambda: spikeforge.convert(RELU, X)(X.long(), steps=2), TypeError, r"must be a floating-point tensor .* but is torch.int64 \[4, 3\]"),
    "an array": (lambda: spikeforge.convert(RELU, X)(X.numpy(), steps=2), TypeError, "but is ndarray"),
    "one dimension": (lambda: spikeforge.convert(RELU, X)(X[0]), TypeError, r"\[T, B, ...\] without steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_name_the_argument(name):
    call, kind, message = WRONG[name]
    with pytest.raises(kind, match=message) as raised:
        call()
    assert "\n" not in str(raised.value)
