"""ddprun in Python: `import ddprun.torch` adds the backend "ddp" to torch.distributed."""
