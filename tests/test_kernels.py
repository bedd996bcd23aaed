"""Kernels are read from generated code: one name per call, without numbers, as CPU and GPU code have them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import torch
from torch._inductor.codecache import PyCodeCache

from pytest_piecewise.engines.kernels import kernels_of

CPU = """
cpp_fused_add_mul_0 = async_compile.cpp_pybinding(['float*'], '''
extern "C" void kernel(float* out)
{
    for(int64_t x0=0L; x0<8L; x0+=1L)
    {
        for(int64_t x1=0L; x1<8L; x1+=1L)
        {
        }
        for(int64_t x1=0L; x1<8L; x1+=1L)
        {
        }
    }
    {
        #pragma omp for
        for(int64_t x0=0L; x0<8L; x0+=1L)
        {
        }
    }
}
''')
cpp_fused_sin_1 = async_compile.cpp_pybinding(['float*'], ''' ''')
def call(args):
    cpp_fused_add_mul_0(buf0)
    extern_kernels.mm(arg0, arg1, out=buf1)
    cpp_fused_sin_1(buf1)
    cpp_fused_add_mul_0(buf2)
"""
GPU = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
@triton.jit
def triton_poi_fused_add_0(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
multi_kernel_1 = async_compile.multi_kernel('multi_kernel_1', [triton_red_fused_sum_1, triton_per_fused_sum_1])
def call(args):
    multi_kernel_1.run(buf0, buf3, stream=stream0)
    triton_poi_fused_add_0.run(arg0, buf0, 16, stream=stream0)
    triton_poi_fused_add_0.run(buf0, buf1, 16, stream=stream0)
    extern_kernels.addmm(arg1, buf1, arg2, alpha=1, beta=1, out=buf2)
"""


def found(tmp_path: Path, text: str) -> list[str]:
    module = ModuleType("generated")
    path = tmp_path / "generated.py"
    path.write_text(text)
    module.__file__ = str(path)
    return sorted(kernels_of(module))


def test_every_call_of_a_nest_of_loops_counts(tmp_path: Path) -> None:
    # Two nests of loops in each of the two calls of the first.
    assert found(tmp_path, CPU) == [*["cpp_fused_add_mul"] * 4, "cpp_fused_sin", "extern_mm"]
    assert found(tmp_path, GPU) == ["extern_addmm", "multi_kernel", *["triton_poi_fused_add"] * 2]


def test_module_without_a_file_has_none() -> None:
    assert kernels_of(ModuleType("nothing")) == []


def test_both_wrappers_have_the_kernels_that_run() -> None:
    linear = torch.nn.Linear(8, 8)

    def model(x: torch.Tensor) -> torch.Tensor:
        return linear(x.sin() + 1).relu().softmax(-1)

    kernels = []
    for cpp_wrapper in (False, True):
        torch._dynamo.reset()
        before = len(PyCodeCache.modules)
        with torch.no_grad(), torch._inductor.config.patch(cpp_wrapper=cpp_wrapper, fx_graph_cache=False):
            torch.compile(model, dynamic=True)(torch.randn(4, 8))
        kernels.append(sorted(name for made in PyCodeCache.modules[before:] for name in kernels_of(made)))
    # The softmax is one kernel of three loops, which Inductor's own counter takes for three.
    assert kernels == [["cpp_fused__softmax_relu", "cpp_fused_add_sin", "extern_addmm"]] * 2
