import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_piecewise import Model


@torch.library.custom_op("mine::attention", mutates_args=("out",))
def attention(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    out.copy_(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1))


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
    return None


class Block(nn.Module):
    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(1)
        out = torch.empty_like(q)
        torch.ops.mine.attention(q, k, v, out)
        return x + F.gelu(self.proj(out.flatten(1)))


def build() -> nn.Module:
    return nn.Sequential(nn.Embedding(100, 64), Block(), Block(), Block(), nn.Linear(64, 100))


def inputs(size: int, generator: torch.Generator) -> tuple[Tensor]:
    return (torch.randint(0, 100, (size,), generator=generator),)


MINE = Model(name="mine", build=build, inputs=inputs, splitting_ops=("mine::attention",))


@pytest.mark.piecewise(MINE)
def test_mine(piecewise):
    piecewise.check()
