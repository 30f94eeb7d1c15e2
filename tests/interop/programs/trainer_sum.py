"""Two steps of Hugging Face's Trainer; the ranks see different samples and end with equal weights."""
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

samples = [{"input_ids": torch.full((4,), n % 16), "labels": torch.full((4,), n % 16)}
           for n in range(16)]
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=8, vocab_size=16, n_positions=8)),
        args=TrainingArguments(folder, max_steps=2, per_device_train_batch_size=1, use_cpu=True,
                               report_to=[], save_strategy="no", disable_tqdm=True),
        train_dataset=samples)
    trainer.train()
rank, size = trainer.args.process_index, trainer.args.world_size
weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
every = [torch.zeros_like(weights) for _ in range(size)]
torch.distributed.all_gather(every, weights)
assert all(torch.equal(w, weights) for w in every), "the ranks' weights differ"
total = torch.full((1,), rank + 1)
torch.distributed.all_reduce(total)
print(f"held: rank {rank} of {size} sum {total.item()}", flush=True)
