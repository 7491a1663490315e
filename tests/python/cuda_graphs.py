"""Steps that are captured in a CUDA graph."""

import torch


def captured(step):
    """A graph of what step() launches, and what it returned; after a call on a side stream, as torch asks where autograd takes part."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results
