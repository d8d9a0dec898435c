"""Where kernels in Triton's language are tested: on a GPU, and elsewhere in its interpreter, on a CPU."""

import pytest
import torch

__all__ = ["KERNEL_DEVICES"]

HAS_GPU = torch.cuda.is_available()
KERNEL_DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(HAS_GPU, reason="where there is a GPU nothing is interpreted")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="needs a CUDA device")]),
]
