"""llama_losses.py DDP_TRAIN - losses of transformers' Llama, and of ddp-train from the same file

Rotary positions as they are, and scaled as in Llama 3.1 and linearly; three steps of all samples."""
import json
import os
import subprocess
import sys
import tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SCALED = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
CONTEXT, SAMPLES = 24, 18  # and two for testing


def compare(name, tied, rope, sizes):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=tied, rms_norm_eps=1e-5,
        initializer_range=0.2, rope_parameters={"rope_theta": 500.0, **rope})
    net = LlamaForCausalLM(config)
    net.save_pretrained("net")
    text = torch.randint(1, 256, (CONTEXT * (SAMPLES + 2) + 1,))
    with open("text", "wb") as f:
        f.write(bytes(text.tolist()))
    subprocess.run(
        [sys.argv[1], "--model", "llama:layers=2,heads=4,kv_heads=2,width=48,hidden=80,vocab=256,base=500,"
         f"context={CONTEXT},untied={int(not tied)}{sizes}", "--data", "text", "--resume", "net/model.safetensors",
         "--batch-size", str(SAMPLES), "--steps", "3", "--lr", "1e-3", "--threads", "1", "--plot", "none",
         "--progress", "none", "--log", name], check=True, stdout=subprocess.DEVNULL, timeout=100)
    with open(name, encoding="ascii") as f:
        ours = [row["loss"] for row in map(json.loads, f) if row["kind"] == "step"]
    x = torch.stack([text[CONTEXT * i:CONTEXT * (i + 1) + 1] for i in range(SAMPLES)])
    optimizer, theirs = torch.optim.AdamW(net.parameters(), 1e-3), []
    for _ in ours:
        optimizer.zero_grad()
        logits = net(x[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs))
    print(f"{name}: {theirs}, worst difference {worst:.1e}")
    assert len(ours) == 3 and worst < 1e-5, (ours, theirs)
    return theirs[0]


torch.set_num_threads(1)
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    first = [compare("plain", False, {"rope_type": "default"}, ""),
             compare("llama3", True, SCALED, ",factor=8,original=32"),
             compare("untied", False, SCALED, ",factor=8,original=32"),
             compare("linear", False, {"rope_type": "linear", "factor": 2.5}, ",factor=2.5")]
    assert min(abs(first[0] - other) for other in first[2:]) > 1e-3, "scaling has no effect"
    os.chdir("/")
print("held: llama")
