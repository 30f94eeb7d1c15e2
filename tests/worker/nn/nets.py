"""nets.py - the models as PyTorch has them, with its names; no dropout"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Linreg(nn.Module):
    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.linear = nn.Linear(c * h * w, outputs)

    def forward(self, x):
        return self.linear(x.flatten(1))


class Mlp(nn.Module):
    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.fc1 = nn.Linear(c * h * w, 512)
        self.fc2 = nn.Linear(512, 512)
        self.fc3 = nn.Linear(512, outputs)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))


class Cnn(nn.Module):
    """Net of pytorch/examples/mnist, without its dropout."""

    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(c, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * ((h - 4) // 2) * ((w - 4) // 2), 128)
        self.fc2 = nn.Linear(128, outputs)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Toy(nn.Module):
    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.net1 = nn.Linear(c * h * w, 10)
        self.net2 = nn.Linear(10, outputs)

    def forward(self, x):
        return self.net2(F.relu(self.net1(x.flatten(1))))


class BasicBlock(nn.Module):
    """As in torchvision.models.resnet, names and all."""

    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False),
                                            nn.BatchNorm2d(planes))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class Bottleneck(nn.Module):
    def __init__(self, inplanes, planes, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample = None
        if stride != 1 or inplanes != 4 * planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, 4 * planes, 1, stride, bias=False),
                                            nn.BatchNorm2d(4 * planes))

    def forward(self, x):
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class ResNet(nn.Module):
    """torchvision.models.resnetN(num_classes=outputs) with conv1 = Conv2d(c, 64, 3, 1, 1,
    bias=False) and maxpool = Identity()."""
    block, counts, wider = BasicBlock, (2, 2, 2, 2), 1

    def __init__(self, c, h, w, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(c, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inplanes = 64
        for i, count in enumerate(self.counts):
            blocks = []
            for j in range(count):
                blocks.append(self.block(inplanes, 64 << i, 2 if i and j == 0 else 1))
                inplanes = (64 << i) * self.wider
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inplanes, outputs)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class ResNet34(ResNet):
    counts = (3, 4, 6, 3)


class ResNet50(ResNet34):
    block, wider = Bottleneck, 4


class Conv1D(nn.Module):
    """A linear layer whose weight is [inputs, outputs]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn, self.c_proj = Conv1D(width, 3 * width), Conv1D(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2)
                   for p in self.c_attn(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class Feed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(width, 4 * width), Conv1D(4 * width, width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), Attention(width, heads)
        self.ln_2, self.mlp = nn.LayerNorm(width), Feed(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """With the names, shapes and order of Hugging Face's file."""

    def __init__(self, layers, heads, width, context, vocab):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.size(1)]
        for block in self.h:
            x = block(x)
        return self.ln_f(x) @ self.wte.weight.T


class RmsNorm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def frequencies(d, base, factor=1.0, low=1.0, high=4.0, original=0):
    """As Hugging Face's rope_type "llama3", or without `original` "linear", has them."""
    plain = 1 / base ** (torch.arange(0, d, 2).float() / d)
    if not original:
        return plain / factor
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    return torch.where(wavelength < original / high, plain,
                       torch.where(wavelength > original / low, plain / factor, between))


def rotated(x, base, scaling):
    """Rotary positions of [b, heads, t, d], each half of a head as in Hugging Face's files."""
    t, d = x.shape[-2:]
    angle = torch.arange(t).float()[:, None] * frequencies(d, base, **scaling)
    cos, sin = torch.cat((angle, angle), 1).cos(), torch.cat((angle, angle), 1).sin()
    return x * cos + torch.cat((-x[..., d // 2:], x[..., :d // 2]), -1) * sin


class LlamaAttention(nn.Module):
    def __init__(self, width, heads, kv_heads, *rotary):
        super().__init__()
        self.heads, self.rotary, kv = heads, rotary, width // heads * kv_heads
        self.q_proj, self.k_proj = nn.Linear(width, width, False), nn.Linear(width, kv, False)
        self.v_proj, self.o_proj = nn.Linear(width, kv, False), nn.Linear(width, width, False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (p(x).view(b, t, -1, c // self.heads).transpose(1, 2)
                   for p in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (p.repeat_interleave(self.heads // k.size(1), 1) for p in (k, v))
        q, k = rotated(q, *self.rotary), rotated(k, *self.rotary)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, c))


class LlamaFeed(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, hidden, False), nn.Linear(width, hidden, False)
        self.down_proj = nn.Linear(hidden, width, False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden, eps, *rotary):
        super().__init__()
        self.input_layernorm = RmsNorm(width, eps)
        self.self_attn = LlamaAttention(width, heads, kv_heads, *rotary)
        self.post_attention_layernorm, self.mlp = RmsNorm(width, eps), LlamaFeed(width, hidden)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """With the names and shapes of Hugging Face's file."""

    def __init__(self, layers, heads, kv_heads, width, hidden, vocab, base=10000, eps=1e-5, **scaling):
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocab, width)
        self.model.layers = nn.ModuleList(LlamaBlock(width, heads, kv_heads, hidden, eps, base, scaling)
                                          for _ in range(layers))
        self.model.norm = RmsNorm(width, eps)
        self.lm_head = nn.Linear(width, vocab, False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x)
        return self.lm_head(self.model.norm(x))


MODELS = {"toy": Toy, "resnet18": ResNet, "resnet34": ResNet34, "resnet50": ResNet50, "linreg": Linreg, "mlp": Mlp, "cnn": Cnn}
