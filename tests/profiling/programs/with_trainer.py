"""A program of a user's: Hugging Face's Trainer, with gradient accumulation and evaluations."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
tokens = torch.randint(0, 64, (48, 16))
data = [{"input_ids": one, "labels": one} for one in tokens]
arguments = TrainingArguments(
    output_dir=sys.argv[1],
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=10,
    eval_strategy="steps",
    eval_steps=4,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, eval_dataset=data[:8]).train()
