"""Steps captured in a CUDA graph."""

import torch


def captured(step):
    """Captures step() and returns its graph and result, after a warm-up call on a side stream, which autograd requires."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results
